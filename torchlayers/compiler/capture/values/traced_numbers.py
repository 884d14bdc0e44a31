"""Numbers of a captured function that are traced, so that the graph is right for other values, too.

A HostNumber is computed from numbers that a call reads in Python or draws: a counter, a warm-up
step. Its arithmetic is noted, and computed again at each call (traced_state.py); a comparison is
guarded by its outcome. A TensorNumber is computed from tensors, as ``x.max().item()``: its
arithmetic is captured in double precision, and a comparison splits the graph. Where Python needs
the number itself, the first is guarded by its value, and the second read.
"""

import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchlayers.core.operators import aten

_NUMBERS = (int, float)
# They have no value for some numbers, as those of the module math.
_PARTIAL = (operator.truediv, operator.floordiv, operator.mod, operator.pow, int, round)


class Expression(NamedTuple):
    """A function of the numbers that a call reads: an operator of expressions and constants.

    ``operator`` is None for the number that is read; ``operands`` then has its index.
    """

    operator: Callable[..., Any] | None
    operands: tuple[Any, ...]

    def indices(self) -> Iterator[int]:
        """Yields the indices of the numbers that are read."""
        if self.operator is None:
            yield self.operands[0]
            return
        for operand in self.operands:
            if isinstance(operand, Expression):
                yield from operand.indices()

    def compute(self, numbers: Sequence[Any]) -> Any:
        if self.operator is None:
            return numbers[self.operands[0]]
        return self.operator(
            *(
                operand.compute(numbers) if isinstance(operand, Expression) else operand
                for operand in self.operands
            )
        )


class HostNumbers(Protocol):
    """What the host numbers of a capture belong to: see traced_state.py."""

    partial: list[Expression]

    def ask(self, expression: Expression, result: Any) -> Any: ...
    def add_input(self, number: "HostNumber", dtype: torch.dtype) -> Tensor: ...


class TracedNumber:
    """A number that notes what is done with it. It is not a float: C code has to ask for it."""

    __slots__ = ("__weakref__",)

    def plain(self) -> Any:
        """Returns the number, on whose value the capture then depends."""
        raise NotImplementedError

    def converted(self, kind: Callable[..., Any]) -> Any:
        """Returns what Python's int or float makes of it."""
        raise NotImplementedError

    def compute(self, func: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """Returns a function of these operands, of which this is one."""
        raise NotImplementedError

    def as_tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns it as a tensor of the captured graph."""
        raise NotImplementedError

    def __copy__(self) -> "TracedNumber":
        return self

    def __deepcopy__(self, memo: Any) -> "TracedNumber":
        return self

    def __reduce__(self) -> Any:
        number = self.plain()
        return type(number), (number,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self.__class__, name):
            raise AttributeError(f"{self.__class__.__name__!r} object has no attribute {name!r}")
        return getattr(self.plain(), name)


class HostNumber(TracedNumber):
    """A number that is computed from numbers that the call reads or draws."""

    __slots__ = ("_numbers", "expression", "value")

    def __init__(self, numbers: HostNumbers, expression: Expression, value: Any) -> None:
        self._numbers = numbers
        self.expression = expression
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def plain(self) -> Any:
        return self._numbers.ask(self.expression, self.value)

    def converted(self, kind: Callable[..., Any]) -> Any:
        return self if type(self.value) is kind else self.compute(kind, (self,))

    def compute(self, func: Callable[..., Any], operands: Sequence[Any]) -> Any:
        values = [operand.value if type(operand) is HostNumber else operand for operand in operands]
        result = func(*values)
        expression = Expression(
            func,
            tuple(
                operand.expression if type(operand) is HostNumber else operand
                for operand in operands
            ),
        )
        if func in _PARTIAL or func.__module__ == "math":
            self._numbers.partial.append(expression)
        if _is_number(result) and all(map(_is_number, values)):
            return HostNumber(self._numbers, expression, result)
        return self._numbers.ask(expression, result)

    def as_tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._numbers.add_input(self, dtype)

    def as_result(self) -> Tensor:
        """Returns the number as an input of the graph that is a result, too."""
        is_float = isinstance(self.value, float)
        return self._numbers.add_input(self, torch.float64 if is_float else torch.int64)


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind in _NUMBERS or (kind.__module__ == "numpy" and kind.__name__ != "ndarray")


class TensorNumber(TracedNumber):
    """A float that is computed from tensors in the graph that is being captured."""

    __slots__ = ("all", "tensor")

    def __init__(self, tensor: Tensor, all: list["weakref.ref[TensorNumber]"]) -> None:
        """``all`` gets a reference to it, and to those that are computed from it."""
        self.tensor = tensor
        self.all = all
        all.append(weakref.ref(self))

    __class__ = property(lambda self: float)

    def plain(self) -> float:
        return aten._local_scalar_dense.default(self.tensor)  # type: ignore[no-any-return]

    def converted(self, kind: Callable[..., Any]) -> Any:
        return self if kind is float else self._rounded(torch.trunc, kind)

    def as_tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.tensor.to(device, dtype)

    def compute(self, func: Callable[..., Any], operands: Sequence[Any]) -> Any:
        if func in _COMPARISONS and any(
            operand is None or type(operand) is str for operand in operands
        ):
            return NotImplemented
        is_traced = func in _OF_TENSORS and all(
            isinstance(operand, TracedNumber) or type(operand) in (int, float, bool)
            for operand in operands
        )
        if not is_traced:
            return func(*map(plain_number, operands))
        values = [*map(self._operand, operands)]
        if func is operator.truediv and bool(values[1] == 0):
            return func(plain_number(operands[0]), 0.0)
        if func is operator.pow and not (
            type(operands[1]) in _NUMBERS and operands[1] in (2, 3, 0.5, 1, -1)
        ):
            return func(*map(plain_number, operands))
        result = _OF_TENSORS[func](*values)
        if func in _COMPARISONS:
            return bool(result)
        if func in _FINITE and not torch.isfinite(result):  # Python's may be an error
            return func(*map(plain_number, operands))
        return TensorNumber(result, self.all)

    def _operand(self, value: Any) -> Any:
        is_traced = isinstance(value, TracedNumber)
        return value.as_tensor(torch.float64, self.tensor.device) if is_traced else value

    def _rounded(
        self, round_tensor: Callable[[Tensor], Tensor], func: Callable[..., Any], *rest: Any
    ) -> Any:
        """An integer, by which branches are told apart, and not by the float."""
        if rest or not bool(self.tensor.abs() < 2**62):  # nor is it nan
            return func(self.plain(), *rest)
        return aten._local_scalar_dense.default(round_tensor(self.tensor).to(torch.int64))


def plain_number(value: Any) -> Any:
    """Returns the number of a TracedNumber, and anything else as it is."""
    return value.plain() if isinstance(value, TracedNumber) else value


_COMPARISONS = tuple(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne"))
_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow", "neg", "pos", "abs")
# Functions of the module math that have a counterpart for tensors.
MATH = {
    getattr(math, name): getattr(torch, name)
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp"),
        *("expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
} | {math.fabs: torch.abs}
_OF_TENSORS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{func: func for func in _COMPARISONS},
    **{func: func for func in (getattr(operator, name) for name in _ARITHMETIC)},
    **MATH,
}
_FINITE = {operator.pow, *MATH}


def _operator(func: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def method(number: TracedNumber, *others: Any) -> Any:
        if any(isinstance(operand, Tensor) for operand in others):
            return NotImplemented
        return compute(func, (*others, number) if is_reflected else (number, *others))

    return method


def compute(func: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Returns a function of operands of which some are traced."""
    traced = [operand for operand in operands if isinstance(operand, TracedNumber)]
    of_tensor = next((operand for operand in traced if type(operand) is TensorNumber), traced[0])
    return of_tensor.compute(func, operands)


def _asking(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda number, *rest: func(number.plain(), *map(plain_number, rest))


def _rounding(func: Callable[..., Any], of_tensor: Callable[..., Any]) -> Callable[..., Any]:
    def method(number: Any, *rest: Any) -> Any:
        if type(number) is TensorNumber:
            return number._rounded(of_tensor, func, *rest)
        return number.compute(func, (number, *rest))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(TracedNumber, f"__{_name}__", _operator(getattr(operator, _name)))
    setattr(TracedNumber, f"__r{_name}__", _operator(getattr(operator, _name), is_reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs"):
    setattr(TracedNumber, f"__{_name}__", _operator(getattr(operator, _name)))
_ASKING: dict[str, Callable[..., Any]] = {
    **{"index": operator.index, "divmod": divmod, "complex": complex, "hash": hash},
    **{"str": str, "repr": repr, "format": format},
}
_ROUNDING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "round": (round, torch.round),
    "trunc": (math.trunc, torch.trunc),
    "floor": (math.floor, torch.floor),
    "ceil": (math.ceil, torch.ceil),
}
for _name, _func in _ASKING.items():
    setattr(TracedNumber, f"__{_name}__", _asking(_func))
for _name, _pair in _ROUNDING.items():
    setattr(TracedNumber, f"__{_name}__", _rounding(*_pair))
_methods: Any = TracedNumber
_methods.__rdivmod__ = lambda number, other: divmod(other, number.plain())
_methods.__float__ = lambda number: float(number.plain())
_methods.__int__ = lambda number: plain_number(number.converted(int))
_methods.__bool__ = lambda number: (
    number.compute(operator.truth, (number,)) if type(number) is HostNumber else number != 0
)
