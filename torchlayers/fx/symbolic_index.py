"""A symbolic loop index: an integer without a value, for a body captured once for all steps.

Operators accept it like an int, and tensors can be indexed with it. Where Python needs its value,
it raises an error, so that a body that depends on the number itself is unrolled.
"""

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers.core import pytree
from torchlayers.core.errors import DataDependentError
from torchlayers.core.operators import aten

_INDEX_PUT = aten.index_put_.default


class SymbolicIndex:
    """A symbolic integer, or a number computed from one.

    Args:
        tensor: the tensor that holds it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*as_tensors(args), **dict(as_tensors([*(kwargs or {}).items()])))

    def _refuse(self, *_: Any) -> NoReturn:
        raise DataDependentError(
            "torchlayers: fori_loop: the body needs the value of the loop index, which does not "
            "exist while the body is captured."
        )

    __bool__ = __int__ = __float__ = __index__ = __repr__ = __str__ = __format__ = _refuse
    __hash__ = _refuse


def _number(func: Callable[..., Any], *operands: Any) -> SymbolicIndex:
    """Computes as Python does with numbers: quotients and powers may be fractions, in float64."""
    some: list[Any] = [*as_tensors(operands)]
    if func in (operator.truediv, operator.pow) or any(isinstance(x, float) for x in some):
        some = [x.double() if isinstance(x, Tensor) else x for x in some]
    return SymbolicIndex(func(*some))


def _forward(func: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: SymbolicIndex, *others: Any) -> Any:
        if any(isinstance(other, Tensor) for other in others):
            return NotImplemented
        return _number(func, self, *others)

    return forward


def _reflected(func: Callable[..., Any]) -> Callable[..., Any]:
    def reflected(self: SymbolicIndex, other: Any) -> Any:
        return func(other, self.tensor) if isinstance(other, Tensor) else _number(func, other, self)

    return reflected


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _func = getattr(operator, _name)
    setattr(SymbolicIndex, f"__{_name}__", _forward(_func))
    setattr(SymbolicIndex, f"__r{_name}__", _reflected(_func))
for _name in ("neg", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(SymbolicIndex, f"__{_name}__", _forward(getattr(operator, _name)))


def as_tensors(values: Any) -> Any:
    """Returns the values with counters replaced by their tensors."""
    leaves, spec = pytree.flatten(values)
    return pytree.unflatten(
        [leaf.tensor if isinstance(leaf, SymbolicIndex) else leaf for leaf in leaves], spec
    )


class SymbolicIndexMode(TorchFunctionMode):
    """Inside, tensors accept counters as subscripts: ``x[i]``, ``x[0, i + 1]``."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[0], Tensor):
            x, subscript = args
            several = subscript if isinstance(subscript, tuple) else (subscript,)
            if any(isinstance(arg, SymbolicIndex) for arg in several):
                return symbolic_getitem(x, several)
        return func(*args, **(kwargs or {}))


def symbolic_getitem(x: Tensor, subscript: tuple[Any, ...]) -> Tensor:
    """``x[subscript]`` with counters: index_select picks one element along each one's dimension."""
    dim = 0
    plain: list[Any] = []
    for place, entry in enumerate(subscript):
        if isinstance(entry, SymbolicIndex):
            size = x.size(dim)
            index = torch.where(entry.tensor < 0, entry.tensor + size, entry.tensor)
            x = x.index_select(dim, index.reshape(1))
        plain.append(0 if isinstance(entry, SymbolicIndex) else entry)
        if entry is ...:
            dim = x.dim() - sum(_dims(other, place) for other in subscript[place + 1 :])
        else:
            dim += _dims(entry, place)
    return x[tuple(plain)]


def symbolic_setitem(x: Tensor, subscript: tuple[Any, ...], value: Any) -> None:
    """``x[subscript] = value`` with counters; like torch, converts and broadcasts the value."""
    if any(map(is_advanced, subscript)):
        _setitem_by_rows(x, subscript, value)
        return
    plain = tuple(slice(None) if isinstance(entry, SymbolicIndex) else entry for entry in subscript)
    for place, entry in enumerate(plain):
        _dims(entry, place)
    rows = x[plain]
    indices: list[Tensor | None] = [None] * rows.dim()
    dim = 0
    for place, entry in enumerate(subscript):
        if isinstance(entry, SymbolicIndex):
            indices[dim] = entry.tensor.long()
        if entry is ...:
            dim = rows.dim() - sum(type(other) is not int for other in subscript[place + 1 :])
        else:
            dim += type(entry) is not int
    if not isinstance(value, Tensor):
        value = rows.new_full((), value)
    dims = sum(index is None for index in indices)
    while value.dim() > dims and value.shape[0] == 1:
        value = value.squeeze(0)
    _INDEX_PUT(rows, indices, value.to(rows.dtype))


def _setitem_by_rows(x: Tensor, subscript: tuple[Any, ...], value: Any) -> None:
    """``x[subscript] = value`` with masks or lists beside counters: updates a row at a time."""
    place = next((i for i, entry in enumerate(subscript) if isinstance(entry, SymbolicIndex)), None)
    if place is None:
        x[subscript] = value
        return
    before, after = subscript[:place], subscript[place + 1 :]
    if any(entry is ... for entry in before):
        dim = x.dim() - 1 - sum(_dims(entry, place) for entry in after)
    else:
        dim = sum(_dims(entry, place) for entry in before)
    size, index = x.size(dim), subscript[place].tensor
    index = torch.where(index < 0, index + size, index).long().reshape(1)
    row = x.index_select(dim, index)
    _setitem_by_rows(row, (*before, 0, *after), value)
    _INDEX_PUT(x, [*[None] * dim, index], row)


def is_advanced(index: Any) -> bool:
    """Whether the subscript is advanced indexing (a list or tensor), which returns a copy."""
    return isinstance(index, (list, Tensor))


def _dims(entry: Any, place: int) -> int:
    """How many dimensions of the tensor a subscript consumes."""
    if entry is None or entry is ...:
        return 0
    if isinstance(entry, SymbolicIndex) or type(entry) in (int, slice):
        return 1
    if is_advanced(entry):
        index = entry if isinstance(entry, Tensor) else torch.tensor(entry)
        return index.dim() if index.dtype in (torch.bool, torch.uint8) else 1
    raise IndexError(
        f"torchlayers: subscript {place} is combined with a symbolic loop index, which is not "
        "supported: use torch.index_select for this one"
    )
