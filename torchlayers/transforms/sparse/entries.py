"""SparseEntries: a sparse matrix on its way through transforms.

NOTE [Entries travel as dense values]
torch's sparse tensors have few batching rules and second derivatives, and a captured graph can't
hold all of them. But a pattern is the same for all values. So inside a transform or a capture, a
sparse derivative is an object of this class: a pytree whose one leaf is a dense tensor, the values
of the entries. A transform that returns it returns this leaf, perhaps with a dimension of samples
in front, and puts the tree together again: as a sparse tensor, if it has left all transforms. What
a function asks of it besides the methods here, a sparse tensor made on the spot answers.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import fake_mode, is_wrapped, torch_c
from torchlayers.transforms.sparse.assembly import Layout, assemble
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.pattern import SparsityPattern

__all__ = ["SparseEntries", "as_entries", "dense", "matrix"]


class _Form(NamedTuple):
    """What a sparse matrix is beside its values, which have shape (*samples, nnz).

    Attributes:
        api: the transform that made it, for errors.
        pattern, layout: of each sample.
        samples: the number of dimensions of samples.
    """

    api: str
    pattern: SparsityPattern
    layout: Layout
    samples: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Form) or self[2:] != other[2:]:
            return False
        if self.pattern is other.pattern:
            return True
        with bookkeeping():
            return self.pattern == other.pattern

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.pattern, *self[2:]))


def matrix(api: str, pattern: SparsityPattern, values: Tensor, layout: Layout) -> Any:
    """The matrix with these values, in the pattern's order: a sparse tensor outside transforms.

    With the layout "values", the values themselves.
    """
    if layout == "values":
        return values
    return _build_matrix(values, _Form(api, pattern, layout))


def _build_matrix(values: Any, form: _Form) -> Any:
    return sparse_outside(SparseEntries(values, form))


def sparse_outside(entries: "SparseEntries") -> Any:
    """The entries, as a sparse tensor if their values have left all transforms and captures."""
    values = entries._values
    if not isinstance(values, Tensor) or is_wrapped(values) or fake_mode() is not None:
        return entries
    with torch_c._DisableFuncTorch():  # a transform that has done its work may still be active
        return entries.to_torch()


class SparseEntries:
    """A sparse Jacobian or Hessian inside a transform or a captured function.

    It has the methods of a sparse tensor that are written with its values (`to_dense`, `values`,
    products, sums of matrices of one pattern), so that all transforms apply to them, to any order.
    Everything else is done by a sparse tensor, as far as torch can.
    """

    def __init__(self, values: Any, form: _Form) -> None:
        self._values = values
        self._form = form

    def to_torch(self) -> Tensor:
        """The sparse tensor."""
        form = self._form
        return assemble(form.api, form.pattern, self._values, form.layout, form.samples)

    # What is known without the values.

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self._values.shape[:-1], *self._form.pattern.shape])

    @property
    def layout(self) -> torch.layout:
        return torch.sparse_coo if self._form.layout == "coo" else torch.sparse_csr

    @property
    def is_sparse(self) -> bool:
        return self._form.layout == "coo"

    @property
    def is_sparse_csr(self) -> bool:
        return self._form.layout == "csr"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def is_coalesced(self) -> bool:
        return True

    def coalesce(self) -> "SparseEntries":
        return self

    # What is computed with the values.

    def values(self) -> Tensor:
        return cast(Tensor, self._values)

    def index_tensors(self) -> dict[str, Tensor]:
        """The positions of the values, by the names of torch's methods of a sparse tensor."""
        pattern = self._form.pattern
        if self._form.layout != "csr":
            return {"indices": _on(self._values, pattern.indices)}
        with bookkeeping():
            starts = pattern.row_starts
        columns = _on(self._values, pattern.cols)
        return {"crow_indices": _on(self._values, starts), "col_indices": columns}

    def to_dense(self) -> Tensor:
        height, width = self._form.pattern.shape
        with bookkeeping():
            places = self._form.pattern.rows * width + self._form.pattern.cols
        zeros = self._values.new_zeros(*self._values.shape[:-1], height * width)
        dense = zeros.index_add(-1, _on(self._values, places), self._values)
        return cast(Tensor, dense.unflatten(-1, (height, width)))

    def __matmul__(self, other: Any) -> Any:
        """The product with a vector or a matrix."""
        if not self._is_plain() or not _is_dense(other) or other.dim() not in (1, 2):
            return torch.matmul(self.to_torch(), other)
        rows, cols = _on(other, self._form.pattern.rows), _on(other, self._form.pattern.cols)
        values = self._values if other.dim() == 1 else self._values[:, None]
        terms = values * other.index_select(0, cols)
        zeros = terms.new_zeros(self._form.pattern.shape[0], *other.shape[1:])
        return zeros.index_add(0, rows, terms)

    def __rmatmul__(self, other: Tensor) -> Any:
        if not self._is_plain() or not _is_dense(other) or other.dim() not in (1, 2):
            return torch.matmul(other, self.to_torch())
        rows, cols = _on(other, self._form.pattern.rows), _on(other, self._form.pattern.cols)
        terms = other.index_select(-1, rows) * self._values
        zeros = terms.new_zeros(*other.shape[:-1], self._form.pattern.shape[1])
        return zeros.index_add(-1, cols, terms)

    mm = mv = matmul = __matmul__

    def sum(self, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or not self._is_plain():
            return self.to_torch().sum(*args, **kwargs)
        return cast(Tensor, self._values.sum())

    def to(self, *args: Any, **kwargs: Any) -> "SparseEntries":
        return self._with(self._values.to(*args, **kwargs))

    def double(self) -> "SparseEntries":
        return self._with(self._values.double())

    def float(self) -> "SparseEntries":
        return self._with(self._values.float())

    def t(self) -> Any:
        """The transpose of a single matrix."""
        if not self._is_plain():
            return self.to_torch().t()
        pattern = self._form.pattern
        with bookkeeping():
            form = self._form._replace(pattern=pattern.T)
            order = torch.argsort(pattern.cols * pattern.shape[0] + pattern.rows)
        return SparseEntries(self._values.index_select(0, _on(self._values, order)), form)

    @property
    def T(self) -> Any:
        return self.t()

    def detach(self) -> "SparseEntries":
        return self._with(self._values.detach())

    def clone(self) -> "SparseEntries":
        return self._with(self._values.clone())

    def __neg__(self) -> "SparseEntries":
        return self._with(-self._values)

    def __mul__(self, other: Any) -> Any:
        return self._with(self._values * other) if _is_number(other) else self.to_torch() * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with(self._values / other) if _is_number(other) else self.to_torch() / other

    def __add__(self, other: Any) -> Any:
        if isinstance(other, SparseEntries):
            if other._form == self._form:
                return self._with(self._values + other._values)
            other = other.to_torch()
        return other + (self.to_dense() if _is_dense(other) else self.to_torch())

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return other + (-self)

    def _with(self, values: Tensor) -> "SparseEntries":
        return SparseEntries(values, self._form)

    def _read_from(self, matrix: Tensor) -> "SparseEntries":
        """The elements of a matrix at these entries."""
        rows, cols = _on(matrix, self._form.pattern.rows), _on(matrix, self._form.pattern.cols)
        return self._with(matrix.to_dense()[rows, cols])

    def _is_plain(self) -> bool:
        """Whether it is one matrix."""
        return not self._form.samples

    # Everything else.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_form" not in vars(self):
            raise AttributeError(name)
        if name in _OF_VALUES:
            return getattr(self._values, name)
        return getattr(self.to_torch(), name)

    def __repr__(self) -> str:
        return f"SparseEntries(values={self._values!r}, pattern={self._form.pattern!r})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        method = _METHODS.get(func) or _METHODS.get(func.__name__)
        if method is not None and not kwargs and len(args) == method.__code__.co_argcount:
            return method(*args)
        named = dict(zip(kwargs, _as_torch(kwargs.values()), strict=True))
        return func(*_as_torch(args), **named)


_OF_VALUES = ("device", "dtype", "grad_fn", "is_complex", "is_floating_point", "requires_grad")


def _product(one: Any, other: Any) -> Any:
    return one @ other if isinstance(one, SparseEntries) else other.__rmatmul__(one)


_OPERATORS: dict[str, Any] = {
    "add": lambda one, other: other + one,
    "matmul": _product,
    "mm": _product,
    "mul": lambda one, other: other * one,
    "mv": _product,
    "neg": lambda x: -x,
    "sub": lambda one, other: -other + one,
    "sum": lambda x: x.sum(),
}
_METHODS: dict[Any, Any] = {
    "_sparse_sum": _OPERATORS["sum"],  # which torch.sparse.sum calls
    torch.sparse.mm: _product,
    Tensor.__add__: _OPERATORS["add"],
    Tensor.__matmul__: _product,
    Tensor.__mul__: _OPERATORS["mul"],
    Tensor.__sub__: _OPERATORS["sub"],
}
for _name, _operator in _OPERATORS.items():
    _METHODS[getattr(torch, _name)] = _METHODS[getattr(Tensor, _name)] = _operator


def _as_torch(args: Iterable[Any]) -> list[Any]:
    """Arguments with sparse tensors in the place of entries, also in lists."""
    return [
        arg.to_torch()
        if isinstance(arg, SparseEntries)
        else type(arg)(_as_torch(arg))
        if type(arg) in (list, tuple)
        else arg
        for arg in args
    ]


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex)) or (isinstance(x, Tensor) and x.dim() == 0)


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _on(like: Tensor, places: Tensor) -> Tensor:
    """Positions in the pattern, as a constant on a tensor's device."""
    return cast(Tensor, aten.lift_fresh.default(places)).to(like.device)


def dense(result: Any) -> Any:
    """The result with dense matrices in the place of entries."""
    leaves, spec = pytree.tree_flatten(result, _is_entries)
    if not any(map(_is_entries, leaves)):
        return result
    return pytree.unflatten([x.to_dense() if _is_entries(x) else x for x in leaves], spec)


def as_entries(output: Any, like: Any) -> Any:
    """What was given for an output, with entries where the output has them: cotangents.

    Returns:
        None if the two have other structures.
    """
    outputs, spec = pytree.tree_flatten(output, _is_entries)
    leaves, given_spec = pytree.tree_flatten(like, _is_entries)
    if spec != given_spec:
        return None
    pairs = zip(outputs, leaves, strict=True)
    changed = [x._read_from(g) if _is_entries(x) and _fits(x, g) else g for x, g in pairs]
    return pytree.unflatten(changed, spec)


def _is_entries(x: Any) -> bool:
    return isinstance(x, SparseEntries)


def _fits(entries: SparseEntries, x: Any) -> bool:
    return isinstance(x, Tensor) and entries._is_plain() and x.shape == entries.shape


# ---- the pytree


def _flatten(entries: SparseEntries) -> tuple[list[Any], _Form]:
    return [entries._values], entries._form


def _unflatten(leaves: Iterable[Any], form: _Form) -> Any:
    (values,) = leaves
    if isinstance(values, Tensor):  # a vmap may have added a dimension
        form = form._replace(samples=values.dim() - 1)
    return _build_matrix(values, form)


def register_entries(
    kind: type,
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Iterable[Any], Any], Any],
) -> None:
    """Makes a class of entries a pytree with one leaf."""

    def flatten_with_keys(entries: Any) -> tuple[list[Any], Any]:
        (leaf,), form = flatten(entries)
        return [(".values()", leaf)], form

    nodes = lookup("torch.utils._pytree.SUPPORTED_NODES")
    nodes[kind] = nodes[tuple]._replace(
        type=kind,
        flatten_fn=flatten,
        unflatten_fn=unflatten,
        flatten_with_keys_fn=flatten_with_keys,
    )


register_entries(SparseEntries, _flatten, _unflatten)
