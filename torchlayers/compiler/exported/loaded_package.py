"""The function that a package holds: checks arguments, and calls the compiled code."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.compiler.capture.signature import PLAIN
from torchlayers.core import pytree as tree
from torchlayers.core.errors import StructureError, TransformError
from torchlayers.core.torch_private import fake_mode, functorch, is_jit_tracing, torch_pytree
from torchlayers.fx.nodes import span


class Package:
    """A function loaded from a file by :func:`load`. It is not differentiable.

    Args:
        args, kwargs: with the structure, shapes, dtypes and devices that it was saved for.
    Returns:
        The result of the saved function for these arguments.
    Raises:
        StructureError: the arguments have another structure, shape, dtype or device.
        TransformError: called inside a transform, or with arguments that require grad.
    """

    def __init__(self, described: dict[str, Any], loader: Any) -> None:
        self.name: str = described["name"]
        self._leaves = described["leaves"]
        self._spec = torch_pytree.treespec_loads(described["spec"])
        self._outputs = described["outputs"]
        self._written: list[int] = described["written"]
        self._out_spec = torch_pytree.treespec_loads(described["out_spec"])
        self._run: Callable[[list[Tensor]], list[Tensor]] = loader.run

    def __repr__(self) -> str:
        return f"Package({self.name})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _C.any_layer() or functorch.maybe_current_level() is not None:
            raise TransformError(
                f"torchlayers: {self.name} was loaded from a package: it is native code without "
                "derivatives or batching rules, and can't be called inside a transform. Transform "
                "the function first, and save the result."
            )
        if _is_traced():
            raise TransformError(
                f"torchlayers: {self.name} was loaded from a package: it is native code, and can't "
                "be traced or called inside a compiled function. Compile the function that was "
                "saved instead."
            )
        leaves, spec = tree.flatten((args, kwargs))
        if spec != self._spec:
            raise StructureError(
                f"torchlayers: {self.name} was saved for arguments of the structure "
                f"{tree.describe(self._spec)}, got {tree.describe(spec)} (* is a leaf)."
            )
        pairs = enumerate(zip(leaves, self._leaves, strict=True))
        checked = [self._checked(i, leaf, expected) for i, (leaf, expected) in pairs]
        self._refuse_shared(leaves)
        computed = self._run([tensor for tensor in checked if tensor is not None])
        for i in self._written:
            if checked[i] is not leaves[i]:  # a copy with the expected strides
                leaves[i].copy_(checked[i])
            elif not leaves[i].is_inference():  # native code does not bump the version
                torch.autograd.graph.increment_version(leaves[i])
        sources = {"computed": computed, "argument": leaves}
        return tree.unflatten(
            [
                sources[source][value] if source in sources else value
                for source, value in self._outputs
            ],
            self._out_spec,
        )

    def _checked(self, place: int, leaf: Any, expected: Any) -> Tensor | None:
        if isinstance(expected, list):
            if type(leaf) is not type(expected[1]) or leaf != expected[1]:
                raise StructureError(
                    f"torchlayers: {self.name} was saved with the constant {expected[1]!r} as leaf "
                    f"{place} of its arguments; got {leaf!r}."
                )
            return None
        if not isinstance(leaf, Tensor):
            raise StructureError(
                f"torchlayers: {self.name}: leaf {place} of the arguments must be a tensor, got "
                f"{type(leaf).__name__}."
            )
        if type(leaf) not in PLAIN or leaf.layout is not torch.strided or leaf.is_quantized:
            raise StructureError(
                f"torchlayers: {self.name}: leaf {place} of the arguments must be a plain tensor, "
                f"got {_kind(leaf)}."
            )
        dtype, device = str(leaf.dtype).removeprefix("torch."), str(leaf.device)
        shape, strides = _for_sizes(expected, leaf)
        if [list(leaf.shape), dtype, device] != [shape, expected["dtype"], expected["device"]]:
            raise StructureError(
                f"torchlayers: {self.name} was saved for a tensor of shape "
                f"{tuple(expected['shape'])}, dtype {expected['dtype']} on {expected['device']} as "
                f"leaf {place} of its arguments; got {tuple(leaf.shape)}, {dtype}, {device}."
            )
        if leaf.requires_grad and torch.is_grad_enabled():
            raise TransformError(
                f"torchlayers: {self.name} was loaded from a package, which has no derivatives, "
                f"and leaf {place} of its arguments requires grad. Detach it, or save the gradient "
                "as a separate function."
            )
        if _has_tangent(leaf):
            raise TransformError(
                f"torchlayers: {self.name} was loaded from a package, which has no derivatives, "
                f"and leaf {place} of its arguments has a tangent. Save the jvp as a separate "
                "function."
            )
        is_as_in_memory = not (leaf.is_conj() or leaf.is_neg())
        if is_as_in_memory and list(leaf.stride()) == strides:
            return leaf
        laid_out = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
        return laid_out.copy_(leaf)

    def _refuse_shared(self, leaves: Sequence[Any]) -> None:
        """Rejects written inputs that overlap others: the code reads all inputs before writing."""
        for i in self._written:
            for j, other in enumerate(leaves):
                if j != i and isinstance(other, Tensor) and _overlap(leaves[i], other):
                    raise TransformError(
                        f"torchlayers: {self.name} writes to leaf {i} of its arguments, which "
                        f"shares memory with leaf {j}, and a package does not preserve the order "
                        "of reads and writes between them. Pass a clone() of one of them."
                    )


def _for_sizes(expected: dict[str, Any], leaf: Tensor) -> tuple[list[int], list[int]]:
    """The expected shape and strides, where dynamic sizes are those of this tensor.

    Dimensions keep their order in memory, and are contiguous in it.
    """
    shape, strides = [*expected["shape"]], [*expected["stride"]]
    if not expected["dynamic"] or len(leaf.shape) != len(shape):
        return shape, strides
    for dim in expected["dynamic"]:
        shape[dim] = leaf.shape[dim]
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim)):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return shape, strides


def _is_traced() -> bool:
    """Whether a capture or trace is active: it would miss native code, which calls no operators."""
    return fake_mode() is not None or is_jit_tracing()


def _has_tangent(tensor: Tensor) -> bool:
    if not _C.any_dual_level_of_others():
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _kind(tensor: Tensor) -> str:
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}"
    return "a quantized tensor" if tensor.is_quantized else f"a tensor with layout {tensor.layout}"


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the byte ranges that the two tensors span overlap."""
    if one.device != other.device or not (one.numel() and other.numel()):
        return False
    (first, last), (begin, end) = _bytes_of(one), _bytes_of(other)
    return first < end and begin < last


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    first = tensor.data_ptr()
    return first, first + span(tensor) * tensor.element_size()
