"""Saves compiled functions to files and loads them: AOTInductor packages, which also run in C++.

Besides the code, a package contains a line of JSON: its torch version, the shapes of the arguments,
and how its tensors map to the function's arguments and result.
"""

import copyreg
import hashlib
import json
import lzma
import os
import platform
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from torchlayers import _C
from torchlayers.compiler.capture.python_writes import PythonWrites
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import PLAIN, TensorMetadata
from torchlayers.compiler.inductor import cache_directory
from torchlayers.compiler.passes.graph_queries import final_copies, operators
from torchlayers.core import pytree as tree
from torchlayers.core.device import CPU
from torchlayers.core.errors import StructureError, TransformError
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import fake_mode, functorch, is_jit_tracing, torch_pytree
from torchlayers.core.torch_versions import is_no_compiler
from torchlayers.fx.callbacks import CALLBACK_OPS
from torchlayers.fx.nodes import emit, memory_of, span, value

_KEY = "torchlayers"
_DIGEST = "torchlayers_sha256"  # of the value under the other key


class PackageContent(NamedTuple):
    """The contents of a package: a graph, the sources of its inputs, the uses of its outputs."""

    name: str
    graph: GraphModule
    captured_graph: CapturedGraph
    leaves: list[Any]  # the leaves of (args, kwargs), with a TensorMetadata for each tensor
    spec: tree.TreeSpec


class _ExportedModule(nn.Module):
    """The graph with the captured tensors as buffers, for torch.export."""

    def __init__(self, content: PackageContent) -> None:
        super().__init__()
        self.graph = _unalias_loop_operands(content.graph)
        self.returned = [
            value for source, value in content.captured_graph.outputs if source == "captured"
        ]
        self.held = [f"captured_{i}" for i in range(len(content.captured_graph.captured))]
        for name, tensor in zip(self.held, content.captured_graph.captured, strict=True):
            self.register_buffer(name, tensor.detach().clone())

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        held = [getattr(self, name) for name in self.held]
        return (*self.graph(*arguments, *held), *(held[i].clone() for i in self.returned))


def save(content: PackageContent, path: str, options: dict[str, Any] | None) -> None:
    """See Lowered.save."""
    if not path.endswith(".pt2"):
        raise TransformError(f"torchlayers: save: the path must end in .pt2, got {path!r}.")
    effects = content.captured_graph.effects
    if any(effects if effects.writes.computed else effects._replace(writes=PythonWrites())):
        raise TransformError(
            f"torchlayers: save: {content.name} sets .data, .grad or requires_grad, stores "
            "a tensor or reads .grad, which a saved function can't do. Pass and return tensors "
            "instead."
        )
    if any(node.target in CALLBACK_OPS for node in operators(content.graph)):
        raise TransformError(
            f"torchlayers: save: {content.name} calls a pure_callback or io_callback, and a file "
            "holds no Python code. Define an operator with torch.library.custom_op."
        )
    examples = tuple(_empty(leaf) for leaf in content.leaves if isinstance(leaf, TensorMetadata))
    described = _described(content)
    settings = {
        "fallback_random": True,  # draw the same numbers as torch
        "aot_inductor.metadata": {_KEY: described, _DIGEST: _digest(described)},
        **(options or {}),
    }
    copyreg.pickle(type(_leaf_spec()), _copy_leaf)
    try:
        cache_directory.check_writable()
        with torch.no_grad():
            exported = torch.export.export(_ExportedModule(content), examples)
            lookup("torch._inductor.aoti_compile_and_package")(
                exported, package_path=path, inductor_configs=settings
            )
    except Exception as error:
        if (why := cache_directory.unusable_reason(error)) is not None:
            raise TransformError(
                f"torchlayers: save: {cache_directory.describe(why)}. Set TORCHINDUCTOR_CACHE_DIR "
                "to a directory that can be written to."
            ) from error
        if is_no_compiler(error):
            raise TransformError(
                "torchlayers: save: this machine has no C++ compiler, which AOTInductor needs."
            ) from error
        raise


def _copy_leaf(leaf: Any) -> Any:
    """Reduces a LeafSpec for copying: torch's exporter copies it, by a deprecated constructor."""
    return _leaf_spec, ()


def _leaf_spec() -> Any:
    return tree.flatten(0)[1]


def _digest(described: str) -> str:
    return hashlib.sha256(described.encode()).hexdigest()


def _unalias_loop_operands(graph: GraphModule) -> GraphModule:
    """Copies loop operands that share memory: torch.export requires separate memory for each."""
    for held in graph.modules():
        assert isinstance(held, GraphModule)
        for node in held.graph.find_nodes(op="call_function", target=higher_order.scan):
            _copy_operands(node)
        for node in held.graph.find_nodes(op="call_function", target=higher_order.while_loop):
            _copy_operands(node)
        held.recompile()
    return graph


def _copy_operands(loop: Node) -> None:
    taken: set[Node] = set()

    def own(operand: Node) -> Node:
        if not isinstance(value(operand), Tensor):
            return operand
        if (memory := memory_of(operand)) in taken:
            return emit(loop, aten.clone.default, operand)
        taken.add(memory)
        return operand

    loop.args = torch.fx.node.map_arg(loop.args, own)


def _empty(like: TensorMetadata) -> Tensor:
    if like.stride is None:
        raise TransformError(
            f"torchlayers: save: an argument has the layout {like.layout}; only strided tensors "
            "can be saved."
        )
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=like.device)


def _described(content: PackageContent) -> str:
    captured_graph = content.captured_graph
    computed, captured = captured_graph.computed, 0
    outputs: list[list[Any]] = []
    for source, which in captured_graph.outputs:
        if source == "captured":
            outputs.append(["computed", computed + captured])
            captured += 1
        else:
            outputs.append([source, which])
    try:
        return json.dumps(
            {
                "name": content.name,
                "torch": torch.__version__,
                "leaves": [
                    {
                        "shape": leaf.shape,
                        "stride": leaf.stride,
                        "dtype": str(leaf.dtype).removeprefix("torch."),
                        "device": str(leaf.device),
                    }
                    if isinstance(leaf, TensorMetadata)
                    else ["constant", leaf]
                    for leaf in content.leaves
                ],
                "spec": torch_pytree.treespec_dumps(content.spec),
                "outputs": outputs,
                "written": _written(content),
                "out_spec": torch_pytree.treespec_dumps(captured_graph.out_spec),
            }
        )
    except (TypeError, NotImplementedError) as error:
        raise TransformError(
            f"torchlayers: save: {content.name} takes or returns a value that can't be serialized ("
            f"{error}). Tensors, numbers, strings and None can be saved, in tuples, lists and "
            "dicts, and in classes registered as pytrees with a serialized_type_name."
        ) from error


def _written(content: PackageContent) -> list[int]:
    """The indices of the argument leaves that the function writes to."""
    tensors = [i for i, leaf in enumerate(content.leaves) if isinstance(leaf, TensorMetadata)]
    inputs = {*final_copies(content.graph).values()}
    return [tensors[i] for i in sorted(inputs) if i < len(tensors)]


def load(path: str | os.PathLike[str]) -> "Package":
    """Loads a function saved by ``compile(f).lower(*args).save(path)``.

    A package is native code: loading one runs whatever is in it. Load only files you trust.

    Args:
        path: the file.
    Returns:
        A :class:`Package`, called with arguments like those it was saved for, without those named
        in static_argnums.
    Raises:
        FileNotFoundError: there is no such file.
        TransformError: the file was not saved by torchlayers, is damaged, or was compiled for
            another torch version or processor.
    Example:
        >>> torchlayers.load("missing.pt2")
        Traceback (most recent call last):
        FileNotFoundError: torchlayers: load: there is no file 'missing.pt2'.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"torchlayers: load: there is no file {path!r}.")
    _check_whole(path)
    try:
        found = lookup("torch._C._aoti.AOTIModelPackageLoader").load_metadata_from_package(
            path, "model"
        )  # runs nothing
        described = json.loads(found[_KEY])
        made_for = described["torch"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers."
        ) from error
    if made_for != torch.__version__:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for torch {made_for}, and this is "
            f"{torch.__version__}. Save it again with this torch."
        )
    if found.get(_DIGEST) != _digest(found[_KEY]):
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its description of arguments and results "
            "differs from what was saved. Copy it or save it again."
        )
    _check_processor(path, found)
    try:
        loader = lookup("torch._C._aoti.AOTIModelPackageLoader")(path, "model", False, 1, -1)
    except RuntimeError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: the code in it can't be loaded "
            f"({str(error).partition(chr(10))[0]}). Copy it or save it again."
        ) from error
    return Package(described, loader)


def _check_whole(path: str) -> None:
    """Raises an error if the file is damaged: running damaged code would crash the process."""
    try:
        with zipfile.ZipFile(path) as package:
            damaged = package.testzip()
    except IsADirectoryError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is a directory. Pass the file that save wrote."
        ) from error
    except PermissionError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError, EOFError, OSError),
        *(NotImplementedError, RuntimeError, ValueError, OverflowError),
    ) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers, or is damaged."
        ) from error
    if damaged is not None:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its member {damaged!r} fails its checksum. "
            "Copy it or save it again."
        )


def _check_processor(path: str, found: dict[str, str]) -> None:
    if found.get("AOTI_DEVICE_KEY") != CPU.type:
        return  # AOTInductor queries the driver
    here = {
        word
        for isa in lookup("torch._inductor.cpu_vec_isa.valid_vec_isa_list")()
        for word in str(isa).upper().split()
    }
    wanted = set(found.get("AOTI_CPU_ISA", "").upper().split())
    machine = found.get("AOTI_MACHINE")
    if machine != platform.machine() or not wanted <= here:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for {machine} with "
            f"{' '.join(sorted(wanted))}, and this processor is {platform.machine()} with "
            f"{' '.join(sorted(here))}. Save it again on a processor like this one."
        )


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
        given = [self._checked(i, leaf, expected) for i, (leaf, expected) in pairs]
        self._refuse_shared(leaves)
        computed = self._run([tensor for tensor in given if tensor is not None])
        for i in self._written:
            if given[i] is not leaves[i]:  # a copy with the expected strides
                leaves[i].copy_(given[i])
            elif not leaves[i].is_inference():  # native code does not bump the version
                torch.autograd.graph.increment_version(leaves[i])
        found = {"computed": computed, "argument": leaves}
        return tree.unflatten(
            [found[source][value] if source in found else value for source, value in self._outputs],
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
        if [list(leaf.shape), dtype, device] != [expected[k] for k in ("shape", "dtype", "device")]:
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
        if is_as_in_memory and list(leaf.stride()) == expected["stride"]:
            return leaf
        laid_out = torch.empty_strided(
            expected["shape"], expected["stride"], dtype=leaf.dtype, device=leaf.device
        )
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
