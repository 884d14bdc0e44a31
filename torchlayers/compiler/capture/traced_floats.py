"""Floats that a captured function reads from tensors, traced as tensors of double precision.

``x.max().item()`` is a TracedFloat during capture. Its arithmetic, and tensors that it is combined
with, are captured, so the graph needs no value: one captured graph is right for each. Where Python
needs the number itself, to compare it or to print it, it is read, and the graph is split there.
"""

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.core.shared_change import SharedChange, replace_attributes


class _Float(float, torch.SymFloat):  # type: ignore[misc]
    """The class that a TracedFloat shows: torch accepts it as a number, and so does isinstance."""


class TracedFloat:
    """A Python float that is computed from tensors in the graph that is being captured.

    It is not a float, so that C code, which would read a float's memory, has to ask for the number.
    """

    __slots__ = ("__weakref__", "all", "tensor")

    def __init__(self, tensor: Tensor, all: list["weakref.ref[TracedFloat]"]) -> None:
        """``all`` gets a reference to it, and to those that are computed from it."""
        self.tensor = tensor
        self.all = all
        all.append(weakref.ref(self))

    def computed(self, tensor: Tensor) -> "TracedFloat":
        """Returns a number that is computed from this one."""
        return TracedFloat(tensor, self.all)

    __class__ = property(lambda self: _Float)

    def __float__(self) -> float:
        return aten._local_scalar_dense.default(self.tensor)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(float, name):
            raise AttributeError(f"'float' object has no attribute {name!r}")
        return getattr(float(self), name)

    def __reduce__(self) -> Any:
        return float, (float(self),)

    def __copy__(self) -> "TracedFloat":
        return self

    def __deepcopy__(self, memo: Any) -> "TracedFloat":
        return self

    def __neg__(self) -> "TracedFloat":
        return self.computed(-self.tensor)

    def __pos__(self) -> "TracedFloat":
        return self

    def __abs__(self) -> "TracedFloat":
        return self.computed(self.tensor.abs())


def _operand(value: Any) -> Any:
    """The other operand of Python's arithmetic, for tensors; NotImplemented if it is not traced."""
    if type(value) is TracedFloat:
        return value.tensor
    return value if type(value) in (float, int, bool) else NotImplemented


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _arithmetic(name: str, compute: Callable[[Any, Any], Tensor]) -> Callable[..., Any]:
    """The method of this name. Numbers of other kinds, and errors, are left to Python."""

    def method(self: TracedFloat, other: Any) -> Any:
        operand = _operand(other)
        if operand is NotImplemented:
            if isinstance(other, Tensor) or hasattr(type(other), "as_traced_float"):
                return NotImplemented
            return getattr(float(self), name)(other)
        if name == "__truediv__" and _is_zero(operand):
            return float(self) / 0.0
        if name == "__rtruediv__" and _is_zero(self.tensor):
            return operand / 0.0
        return self.computed(compute(self.tensor, operand))

    return method


def _comparison(name: str, compare: Callable[[Any, Any], Tensor]) -> Callable[..., Any]:
    def method(self: TracedFloat, other: Any) -> Any:
        operand = _operand(other)
        if operand is NotImplemented:
            is_left = other is None or isinstance(other, Tensor | str)
            if is_left or hasattr(type(other), "as_traced_float"):
                return NotImplemented
            return getattr(float(self), name)(other)
        return bool(compare(self.tensor, operand))

    return method


def _of_the_number(name: str) -> Callable[..., Any]:
    def method(self: TracedFloat, *args: Any) -> Any:
        return getattr(float(self), name)(*map(number_of, args))

    return method


def _rounded(name: str, round_tensor: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A conversion to an integer, by which branches are told apart, and not by the float."""

    def method(self: TracedFloat, *args: Any) -> Any:
        if args or not bool(self.tensor.abs() < 2**62):  # nor is it nan
            return getattr(float(self), name)(*args)
        rounded = round_tensor(self.tensor).to(torch.int64)
        return aten._local_scalar_dense.default(rounded)

    return method


def number_of(value: Any) -> Any:
    """Reads a TracedFloat; returns anything else as it is."""
    return float(value) if type(value) is TracedFloat else value


_ARITHMETIC: dict[str, Callable[[Any, Any], Tensor]] = {
    "__add__": lambda x, y: x + y,
    "__radd__": lambda x, y: y + x,
    "__sub__": lambda x, y: x - y,
    "__rsub__": lambda x, y: y - x,
    "__mul__": lambda x, y: x * y,
    "__rmul__": lambda x, y: y * x,
    "__truediv__": lambda x, y: x / y,
    "__rtruediv__": lambda x, y: y / x,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "__lt__": lambda x, y: x < y,
    "__le__": lambda x, y: x <= y,
    "__gt__": lambda x, y: x > y,
    "__ge__": lambda x, y: x >= y,
    "__eq__": lambda x, y: x == y,
    "__ne__": lambda x, y: x != y,
}
_OF_THE_NUMBER = (
    *("__str__", "__repr__", "__format__", "__hash__", "__floordiv__", "__rfloordiv__"),
    *("__mod__", "__rmod__", "__divmod__", "__rdivmod__", "__pow__", "__rpow__"),
)
_ROUNDED = {
    "__int__": torch.trunc,
    "__trunc__": torch.trunc,
    "__round__": torch.round,
    "__floor__": torch.floor,
    "__ceil__": torch.ceil,
}
for _name, _compute in _ARITHMETIC.items():
    setattr(TracedFloat, _name, _arithmetic(_name, _compute))
for _name, _compare in _COMPARISONS.items():
    setattr(TracedFloat, _name, _comparison(_name, _compare))
for _name, _round in _ROUNDED.items():
    setattr(TracedFloat, _name, _rounded(_name, _round))
for _name in _OF_THE_NUMBER:
    setattr(TracedFloat, _name, _of_the_number(_name))


def _power(self: TracedFloat, exponent: Any) -> Any:
    """``self ** exponent``; where it is not finite, Python's may be an error."""
    if type(exponent) in (int, float) and exponent in (2, 3, 0.5, 1, -1):
        result = self.tensor.pow(exponent)
        if torch.isfinite(result):
            return self.computed(result)
    return float(self) ** number_of(exponent)


setattr(TracedFloat, "__pow__", _power)  # noqa: B010

# Functions of the module math that have a counterpart for tensors.
_MATH = {
    name: getattr(torch, name)
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp"),
        *("expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
} | {"fabs": torch.abs}

_MATH_QUESTIONS = {"isfinite": torch.isfinite, "isinf": torch.isinf, "isnan": torch.isnan}


def _number_in(value: Any) -> Any:
    """The number of a tensor, which math would convert by ``float``; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.is_floating_point() else value


def _asked(of_number: Any, of_tensor: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    @functools.wraps(of_number)
    def call(x: Any) -> bool:
        x = _number_in(x)
        return bool(of_tensor(x.tensor)) if type(x) is TracedFloat else of_number(x)

    return call


def _traced(of_number: Any, of_tensor: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    @functools.wraps(of_number)
    def call(*args: Any) -> Any:
        args = (*map(_number_in, args),)
        if len(args) == 1 and type(args[0]) is TracedFloat:
            result = of_tensor(args[0].tensor)
            if torch.isfinite(result):  # otherwise math's may be an error
                return args[0].computed(result)
        return of_number(*args)

    return call


def _trace_math() -> Callable[[], None]:
    kinds = (_traced, _MATH), (_asked, _MATH_QUESTIONS)
    return replace_attributes(
        [
            (math, name, wrap(getattr(math, name), of_tensor))
            for wrap, functions in kinds
            for name, of_tensor in functions.items()
        ]
    )


# Inside, functions of the module math trace.
math_traced = SharedChange(_trace_math)

# Functions that take tensors for numbers, by names without underscores. clamp is not among them: at
# a bound that is a tensor, it has another derivative with torch 2.15.
TAKES_TENSORS = {
    *("add", "radd", "iadd", "sub", "rsub", "isub", "subtract", "mul", "rmul", "imul", "multiply"),
    *("div", "rdiv", "idiv", "divide", "truediv", "rtruediv", "itruediv", "true_divide", "pow"),
    *("rpow", "ipow", "eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "greater_equal"),
    *("less_equal", "where", "masked_fill", "fill"),
    *("full", "full_like", "new_full", "lerp", "addcmul", "addcdiv", "setitem"),
}


# Those that round the number to the dtype of their result.
_FILLS = {"fill", "full", "full_like", "new_full"}


def with_operands(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a torch function with tensors or numbers in place of TracedFloats."""
    leaves, spec = pytree.flatten((args, kwargs))
    if not any(type(leaf) is TracedFloat for leaf in leaves):
        return args, kwargs
    name = getattr(func, "__name__", "").strip("_")
    if name in TAKES_TENSORS:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kind = {} if name in _FILLS else _kind_of_numbers(tensors)
        leaves = [leaf.tensor.to(**kind) if type(leaf) is TracedFloat else leaf for leaf in leaves]
    elif func not in MAKING_RULES:
        leaves = [*map(number_of, leaves)]
    args, kwargs = pytree.unflatten(leaves, spec)
    return args, kwargs


def _kind_of_numbers(tensors: Sequence[Tensor]) -> dict[str, Any]:
    """The dtype and device for a tensor without dimensions that acts as a Python float would.

    Beside a tensor with dimensions, its dtype does not matter.
    """
    floats = [x for x in tensors if x.is_floating_point() or x.is_complex()]
    device = {"device": tensors[0].device} if tensors else {}
    if any(x.dim() > 0 for x in floats):
        return {"dtype": torch.float64, **device}
    if not floats:
        return {"dtype": torch.get_default_dtype(), **device}
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in floats])
    return {"dtype": dtype.to_real() if dtype.is_complex else dtype, **device}


def _making(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes a tensor of TracedFloats, also in lists, as torch makes one of numbers."""

    @functools.wraps(func)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        *before, data = args
        leaves, spec = pytree.flatten(data)
        if not any(type(leaf) is TracedFloat for leaf in leaves):
            return func(*pytree.map_leaves(number_of, args), **kwargs)
        like = func(*before, pytree.unflatten([*map(_placeholder, leaves)], spec), **kwargs)
        tensors = [_in_double(leaf) for leaf in leaves]
        values = torch.stack(tensors).reshape(like.shape)
        return values.to(like).requires_grad_(like.requires_grad)

    return make


def _placeholder(leaf: Any) -> Any:
    return 0.0 if type(leaf) is TracedFloat else leaf


def _in_double(leaf: Any) -> Tensor:
    if type(leaf) is TracedFloat:
        return leaf.tensor
    return torch.as_tensor(leaf, dtype=torch.float64)


MAKING_RULES: dict[Any, Callable[..., Any]] = {
    func: _making(func)
    for func in (
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
        torch.scalar_tensor,
        Tensor.new_tensor,
    )
}
