"""A vmapped function's in_dims and out_dims, matched against its arguments and results."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.annotations import Randomness
from torchlayers.core.errors import DimensionError, NotTensorError, OutDimError, TransformError
from torchlayers.random.keys import fold_in
from torchlayers.random.seeded import seeded
from torchlayers.transforms import patched_torch_func, tensor_provenance

# Leaves, their spec, and the batch dimension, or None, of each leaf.
FlatResults: TypeAlias = tuple[list[Any], pytree.TreeSpec, list[int | None]]
# The same, and the batch size.
FlatArguments: TypeAlias = tuple[list[Any], pytree.TreeSpec, list[int | None], int]


class _Dataclass(Protocol):
    """Any dataclass: one that is registered as a pytree may hold dims."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# The batch dimension of a tensor, or a pytree of them: of an argument, and of the results.
InDims: TypeAlias = int | tuple[Any, ...] | list[Any] | Mapping[Any, Any] | _Dataclass | None
OutDims: TypeAlias = InDims | Literal["ragged"]


class VmapSpec(NamedTuple):
    """A function, and how to batch it.

    The call is in C++, which reads the fields. It calls a method if the dimensions are not an int
    for all, or for each argument, or if an error has to be raised.
    """

    func: Callable[..., Any]
    in_dims: Any
    out_dims: Any
    randomness: Randomness
    key: Tensor | None = None  # with randomness "keyed"
    first: int = 0  # index of this chunk's first sample in the whole batch
    api: str = "vmap"  # the function that error messages name

    def with_key(self) -> "VmapSpec":
        """Returns self with a key drawn for this call, if it is keyed and has no key."""
        if self.randomness != "keyed" or self.key is not None:
            return self
        return self._replace(key=torch.randint(2**63 - 1, ()))

    def of_sample(self, place: int) -> Callable[..., Any]:
        """Returns the function, seeded with the key of the sample at this index if it is keyed."""
        if self.key is None:
            return self.func
        return seeded(self.func, fold_in(self.key, place))

    def check_out_dims(self) -> None:
        if isinstance(self.out_dims, int):
            return
        for dim in pytree.leaves(self.out_dims):
            if not (dim is None or isinstance(dim, int)):
                raise DimensionError(
                    f"{self._returned()}: out_dims must be an int, None or a pytree of these, got "
                    f"{dim!r}."
                )

    def flat_arguments(self, args: tuple[Any, ...]) -> FlatArguments:
        """Returns the flattened arguments, with batch dimensions checked for range and size."""
        if process := patched_torch_func.patched_steps(patched_torch_func.VMAP).get(
            "_process_batched_inputs"
        ):
            batch_size, dims, leaves, spec = process(self.in_dims, args, self.func)
            return leaves, spec, dims, batch_size
        if not isinstance(self.in_dims, (int, tuple)):
            hint = ""
            if isinstance(self.in_dims, list) and len(self.in_dims) == len(args) > 1:
                hint = f" Write a tuple: {tuple(self.in_dims)!r}."
            elif isinstance(self.in_dims, (list, dict)):
                hint = f" For one argument write ({self.in_dims!r},)."
            raise DimensionError(
                f"{self.call()}: in_dims must be an int or a tuple that matches the arguments, got "
                f"{type(self.in_dims).__name__}.{hint}"
            )
        if not args:
            raise DimensionError(
                f"{self.call()}: got no positional arguments, so there is nothing to batch."
            )
        leaves, spec = pytree.flatten(args)
        dims = pytree.broadcast(self.in_dims, spec)
        if dims is None:
            raise DimensionError(
                f"{self.call()}: in_dims don't match the arguments: in_dims are "
                f"{pytree.describe(pytree.flatten(self.in_dims)[1])}, the arguments "
                f"{pytree.describe(spec)} (* is a leaf)."
            )
        sizes = {}
        for i, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
            if dim is not None:
                dims[i] = self._in_dim(args, i, leaf, dim)
                sizes[i] = leaf.size(dims[i])
        if not sizes:
            raise DimensionError(
                f"{self.call()}: no argument is batched: at least one in_dim must be an int."
            )
        first, batch_size = next(iter(sizes.items()))
        if any(size != batch_size for size in sizes.values()):
            other = next(i for i, size in sizes.items() if size != batch_size)
            raise DimensionError(
                f"{self.call()}: Expected all tensors to have the same size in the mapped "
                "dimension, but "
                + " and ".join(
                    f"{pytree.leaf_name('argument', args, i)} has {sizes[i]} in dim {dims[i]}"
                    for i in (first, other)
                )
                + "."
                + self._shared_hint(len(args))
            )
        return leaves, spec, dims, batch_size

    def _shared_hint(self, arguments: int) -> str:
        if not isinstance(self.in_dims, int) or arguments < 2:
            return ""
        return " Give None in in_dims to an argument that all samples share: in_dims=(None, 0)."

    def describe_tensor(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor, level: int
    ) -> str:
        """Describes, for error messages, a tensor that the function did not create."""
        return tensor_provenance.describe_tensor(self.func, args, kwargs, tensor, level)

    def flat_results(self, results: Any, level: int) -> FlatResults:
        """Returns the flattened results, with the out_dim of each."""
        leaves, spec = pytree.flatten(results)
        prefix = self.out_dims
        if isinstance(results, Tensor) and isinstance(prefix, tuple) and len(prefix) == 1:
            prefix = prefix[0]  # a one-tuple is allowed for a single tensor
        dims = pytree.broadcast(prefix, spec)
        if dims is None:
            raise DimensionError(
                f"{self._returned()}: out_dims don't match the results: out_dims are "
                f"{pytree.describe(pytree.flatten(self.out_dims)[1])}, the results "
                f"{pytree.describe(spec)} (* is a leaf)."
            )
        for leaf, dim in zip(leaves, dims, strict=True):
            self._check_out_dim(results, leaf, dim, level)
        return leaves, spec, dims

    def _in_dim(self, args: tuple[Any, ...], i: int, leaf: Any, dim: Any) -> int:
        if not isinstance(dim, int):
            raise DimensionError(
                f"{self.call()}: in_dim {dim!r} of {pytree.leaf_name('argument', args, i)} must be "
                "an int or None."
            )
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"{self.call()}: in_dim {dim} was given for "
                f"{pytree.leaf_name('argument', args, i)}, a {type(leaf).__name__}: only tensors "
                "can be batched. Give None for it."
            )
        dims = leaf.dim()
        if not -dims <= dim < dims:
            name = pytree.leaf_name("argument", args, i)
            raise DimensionError(
                f"{self.call()}: in_dim {dim} is out of range for {name} of shape "
                f"{tuple(leaf.shape)}: it must lie in [{-dims}, {dims - 1}]."
                if dims
                else f"{self.call()}: {name} has no dimensions, so in_dim {dim} is out of range. "
                "Give None for it, or a tensor with a batch dimension."
            )
        return dim % dims

    def _check_out_dim(self, results: Any, leaf: Any, dim: int | None, level: int) -> None:
        if dim is None:
            if isinstance(leaf, Tensor) and _C.is_batched(leaf, level):
                raise DimensionError(
                    f"{self._returned()}: a result whose out_dim is None depends on the batch. "
                    "Give an int for it."
                )
            return
        if not isinstance(leaf, Tensor):
            advice = (
                "A function that only has side effects returns nothing to batch: give "
                "out_dims=None."
                if results is None
                else "Give it out_dims=None to return it unchanged."
            )
            raise NotTensorError(
                f"torchlayers: {self.api}({pytree.name_of(self.func)}): the function must return "
                f"only tensors, got {type(leaf).__name__}. {advice}"
            )
        dims = leaf.dim() + 1
        if not -dims <= dim < dims:
            raise OutDimError(
                f"{self._returned()}: out_dim {dim} is out of range for a result that has {dims} "
                f"dimensions including the batch dimension: it must lie in [{-dims}, {dims - 1}]."
            )

    def call(self) -> str:
        return f"torchlayers: {self.api}({pytree.name_of(self.func)}, in_dims={self.in_dims!r})"

    def _returned(self) -> str:
        return f"torchlayers: {self.api}({pytree.name_of(self.func)}, out_dims={self.out_dims!r})"


def check_randomness(api: str, randomness: str) -> None:
    if randomness not in ("error", "same", "different", "keyed"):
        raise TransformError(
            f"torchlayers: {api}: randomness must be 'error', 'same', 'different' or 'keyed', got "
            f"{randomness!r}."
        )


def resolve_out_dims(out_dims: Any, spec: pytree.TreeSpec) -> list[int | None]:
    """Returns the out_dim of each leaf of a vmap's results."""
    dims = pytree.broadcast(out_dims, spec)
    return list(out_dims) if dims is None else dims  # a one-tuple for a single tensor
