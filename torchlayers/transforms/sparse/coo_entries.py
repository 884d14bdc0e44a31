"""torch.sparse_coo_tensor of values that a transform differentiates or batches.

As in NOTE [Entries travel as dense values], but of any indices, which may repeat. It is a sparse
tensor where it leaves the transforms.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import StructureError, TransformError, location
from torchlayers.core.tensors.inspection import wrappers
from torchlayers.core.torch_private import FakeTensor, is_wrapped
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.entries import (
    SparseEntries,
    register_entries,
    sparse_outside,
)

__all__ = ["CooEntries"]


class _Structure(NamedTuple):
    """A sparse tensor without its values: indices (sparse_dim, nnz), and the sizes."""

    indices: Tensor
    size: tuple[int, ...]
    is_coalesced: bool

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Structure)
            and self.indices is other.indices
            and self[1:] == other[1:]
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self.indices), self[1:]))


class CooEntries(SparseEntries):
    """A COO tensor inside a transform: the values of its entries, and their indices.

    It has the methods of a sparse tensor that are written with its values, so that all transforms
    apply to them. For the others torch makes a sparse tensor, if no vmap batches the values.
    """

    def __init__(self, values: Any, structure: _Structure) -> None:
        self._values = values
        self._form: Any = structure

    def to_torch(self) -> Tensor:
        indices, size, is_coalesced = self._form
        if _C.batched_levels(self._values):
            raise TransformError(
                "torchlayers: vmap: this use of a torch.sparse_coo_tensor of batched values is "
                f"not supported.{location()} Under vmap it has to_dense(), coalesce(), values(), "
                "sum(), t(), products with dense vectors and matrices (@, torch.sparse.mm), and "
                "arithmetic. Call to_dense() for everything else."
            )
        indices = indices.to(self._values.device)
        return _C.torch_coo_tensor(indices, self._values, size, is_coalesced=is_coalesced or None)

    # What does not depend on the values.

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._form.size)

    @property
    def layout(self) -> torch.layout:
        return torch.sparse_coo

    is_sparse, is_sparse_csr = True, False

    def sparse_dim(self) -> int:
        return len(self._form.size)

    def dense_dim(self) -> int:
        return 0

    def numel(self) -> int:
        return math.prod(self.shape)

    def _nnz(self) -> int:
        return cast(int, self._values.shape[0])

    def is_coalesced(self) -> bool:
        return cast(bool, self._form.is_coalesced)

    def indices(self) -> Tensor:
        self._require_coalesced("indices")
        return cast(Tensor, self._form.indices)

    def _indices(self) -> Tensor:
        return cast(Tensor, self._form.indices)

    def _require_coalesced(self, name: str) -> None:
        if not self.is_coalesced() and not _is_constant(self._form.indices):
            raise TransformError(
                f"torchlayers: {name}() of a torch.sparse_coo_tensor whose indices depend on a "
                f"transform's or a captured function's arguments.{location()} How many of them "
                "differ would depend on their values. Pass is_coalesced=True if all do."
            )
        if not self.is_coalesced():
            raise RuntimeError(
                f"torchlayers: {name}() of a sparse tensor whose indices may repeat.{location()} "
                "Call coalesce() first."
            )

    # What is computed with the values.

    def values(self) -> Tensor:
        self._require_coalesced("values")
        return cast(Tensor, self._values)

    def coalesce(self) -> Any:
        indices, size, is_coalesced = self._form
        if is_coalesced or not _is_constant(indices):  # else it is not known how many differ
            return self
        with bookkeeping():
            keys, slots = torch.unique(_flat(indices, size), return_inverse=True)
            different = torch.stack(torch.unravel_index(keys, size))
        zeros = self._values.new_zeros(keys.numel())
        summed = zeros.index_add(0, slots.to(self._values.device), self._values)
        return CooEntries(summed, _Structure(different, size, True))

    def to_dense(self) -> Tensor:
        size = self._form.size
        places = _flat(self._form.indices, size).to(self._values.device)
        zeros = self._values.new_zeros(math.prod(size))
        return cast(Tensor, zeros.index_add(0, places, self._values).reshape(size))

    def __matmul__(self, other: Any) -> Any:
        return self._product(other, 0) if self._multiplies(other) else super().__matmul__(other)

    def __rmatmul__(self, other: Tensor) -> Any:
        if not self._multiplies(other):
            return super().__rmatmul__(other)
        return self._product(other.mT if other.dim() == 2 else other, 1).t()

    mm = mv = matmul = __matmul__

    def _multiplies(self, other: Any) -> bool:
        is_dense = isinstance(other, Tensor) and other.layout == torch.strided
        return is_dense and other.dim() in (1, 2) and len(self._form.size) == 2

    def _product(self, other: Tensor, to: int) -> Tensor:
        """Sums over dimension 1 - to of the matrix and the first one of other."""
        self_size, size = self._form.size[1 - to], other.shape[0]
        if self_size != size:
            raise StructureError(
                f"torchlayers: a sparse matrix of shape {tuple(self.shape)} can't be multiplied "
                f"with {size} rows.{location()} Its other side has {self_size}."
            )
        indices = self._form.indices.to(other.device)
        values = self._values if other.dim() == 1 else self._values[:, None]
        terms = values * other.index_select(0, indices[1 - to])
        zeros = terms.new_zeros(self._form.size[to], *other.shape[1:])
        return cast(Tensor, zeros.index_add(0, indices[to], terms))

    def sum(self, dim: Any = None, **options: Any) -> Any:
        if dim is None and not options:
            return self._values.sum()
        dims = [dim] if isinstance(dim, int) else [*(dim or ())]
        dims = [axis % len(self._form.size) for axis in dims]
        rest = [i for i in range(len(self._form.size)) if i not in dims]
        if options or not dims or not rest:
            return self.to_dense().sum(dim, **options)
        size = tuple(self._form.size[i] for i in rest)
        return CooEntries(self._values, _Structure(self._form.indices[rest], size, False))

    def t(self) -> Any:
        size = self._form.size
        return CooEntries(self._values, _Structure(self._form.indices.flip(0), size[::-1], False))

    @property
    def T(self) -> Any:
        return self.t()

    def transpose(self, dim0: int, dim1: int) -> Any:
        if len(self._form.size) == 2:
            return self.t() if dim0 % 2 != dim1 % 2 else self
        return self.to_torch().transpose(dim0, dim1)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Tensor) and other.layout == torch.strided and other.dim():
            size = self._form.size
            at = other.expand(size)[tuple(self._form.indices.to(other.device))]
            return self._with(self._values * at)
        return super().__mul__(other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        if _is_constant_coo(other):
            with bookkeeping():
                structure = _Structure(other._indices(), tuple(other.shape), other.is_coalesced())
                other = CooEntries(other._values(), structure)
        if isinstance(other, CooEntries) and other._form.size == self._form.size:
            if other._form == self._form:
                return self._with(self._values + other._values)
            indices = torch.cat([self._form.indices, other._form.indices], 1)
            structure = _Structure(indices, self._form.size, False)
            return CooEntries(torch.cat([self._values, other._values]), structure)
        return super().__add__(other)

    __radd__ = __add__

    def _with(self, values: Tensor) -> "CooEntries":
        return CooEntries(values, self._form)

    def _read_from(self, matrix: Tensor) -> "CooEntries":
        return self._with(matrix.to_dense()[tuple(self._form.indices.to(matrix.device))])

    def _is_plain(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):
            raise TransformError(
                f"torchlayers: {name} writes to a torch.sparse_coo_tensor inside a transform, "
                f"which is not supported.{location()} Use {name[:-1]}, or write to its values "
                "before it is made."
            )
        return super().__getattr__(name)

    def __repr__(self) -> str:
        return f"CooEntries{self._values, *self._form}"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SUMS or func.__name__ == "_sparse_sum":
            return args[0].sum(*args[1:], **kwargs)
        if func in _SUMS_OF_PRODUCTS and isinstance(args[1], CooEntries):
            scales = {"beta": 1, "alpha": 1, **kwargs}
            total, one, other = args
            return scales["beta"] * total + scales["alpha"] * (one @ other)
        return super().__torch_function__(func, types, args, kwargs)


_SUMS = {torch.sum, Tensor.sum}
_SUMS_OF_PRODUCTS = {torch.sparse.addmm, torch.addmm, Tensor.addmm}


def _flat(indices: Tensor, size: tuple[int, ...]) -> Tensor:
    """The entries' positions in the flattened tensor."""
    places = indices.new_zeros(indices.shape[-1])
    for index, width in zip(indices, size, strict=True):
        places = places * width + index
    return places


def _of_samples(indices: Tensor, samples: torch.Size) -> Tensor:
    """The indices of a sparse tensor that has these dimensions in front."""
    counts = [torch.arange(size, device=indices.device) for size in samples]
    places = torch.stack(torch.meshgrid(*counts, indexing="ij")).flatten(1)
    repeated = places.repeat_interleave(indices.shape[1], dim=1)
    return torch.cat([repeated, indices.repeat(1, places.shape[1])])


def _is_constant(indices: Tensor) -> bool:
    """Whether the indices can be read: no layer or capture has them."""
    return not is_wrapped(indices) and not isinstance(indices, FakeTensor)


def _is_constant_coo(x: Any) -> bool:
    """Whether x is torch's sparse tensor of numbers, which no transform or autograd tracks."""
    if not isinstance(x, Tensor) or x.layout != torch.sparse_coo or x.requires_grad:
        return False
    return x.dense_dim() == 0 and _is_constant(x)


# ---- the pytree


def _flatten(entries: CooEntries) -> tuple[list[Any], Any]:
    if _is_constant(entries._form.indices):
        return [entries._values], entries._form
    return [entries.to_torch()], None  # the indices are the transform's as well


def _unflatten(leaves: Iterable[Any], form: Any) -> Any:
    (values,) = leaves
    if form is None:
        return values
    if not isinstance(values, Tensor):
        return CooEntries(values, form)
    if samples := values.shape[:-1]:  # a vmap has added dimensions
        with bookkeeping():
            indices = _of_samples(form.indices, samples)
        form = _Structure(indices, (*samples, *form.size), form.is_coalesced)
        values = values.flatten()
    return sparse_outside(CooEntries(values, form))


register_entries(CooEntries, _flatten, _unflatten)


# ---- torch.sparse_coo_tensor


def entries_of_values(
    indices: Any,
    values: Any = None,
    size: Any = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    is_coalesced: bool | None = None,
    check_invariants: bool | None = None,
    **others: Any,
) -> CooEntries | None:
    """The entries of such a tensor, called for it while a layer is active
    (csrc/python/patches/coo_tensor.cpp); None if torch is to make it."""
    if not isinstance(values, Tensor) or not is_wrapped(values) or values.dim() != 1:
        return None
    if any(others.values()) or not (values.is_floating_point() or values.is_complex()):
        return None
    indices = _read_indices(indices)
    if indices.dim() != 2:
        return None
    if size is None and not _is_constant(indices):
        raise TransformError(
            "torchlayers: torch.sparse_coo_tensor: the size would depend on the values of the "
            f"indices, which can't be read here.{location()} Pass size."
        )
    if size is None:
        with bookkeeping():
            size = (indices.amax(1) + 1).tolist()
    sizes = tuple(size)
    if len(sizes) != indices.shape[0] or indices.shape[1] != values.shape[0]:
        return None  # torch says so
    if check_invariants is not False and _is_constant(indices):
        _check_range(indices, sizes)
    values = values.to(dtype=dtype or values.dtype, device=device or values.device)
    return CooEntries(values, _Structure(indices, sizes, bool(is_coalesced)))


def _read_indices(indices: Any) -> Tensor:
    if not isinstance(indices, Tensor):
        with bookkeeping():
            return torch.as_tensor(indices)
    value = indices
    for wrapper in wrappers(indices):  # integers have no derivative
        if wrapper.batch_dim is not None:
            return indices
        value = wrapper.inner
    return value


def _check_range(indices: Tensor, size: tuple[int, ...]) -> None:
    with bookkeeping():
        limits = torch.tensor(size, device=indices.device)[:, None]
        outside = ((indices < 0) | (indices >= limits)).any(0).nonzero()
        if outside.numel():
            place = tuple(indices[:, int(outside[0])].tolist())
            raise StructureError(
                f"torchlayers: torch.sparse_coo_tensor: the index {place} is outside the size "
                f"{size}.{location()}"
            )
