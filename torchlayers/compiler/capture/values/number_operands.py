"""Traced numbers among the arguments of torch's functions, of the module math, of int and float."""

import contextlib
import dis
import functools
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.capture.values.traced_numbers import (
    MATH,
    HostArray,
    TensorNumber,
    TracedNumber,
    UnknownArrayUseError,
    compute,
)
from torchlayers.core import pytree
from torchlayers.core.code_objects import codes_in
from torchlayers.core.device import CPU
from torchlayers.core.shared_change import SharedChange, replace_attributes

# Functions that take tensors for numbers, by names without underscores. clamp is not among them: at
# a bound that is a tensor, it has another derivative with torch 2.15.
_TAKE_TENSORS = {
    *("add", "radd", "iadd", "sub", "rsub", "isub", "subtract", "mul", "rmul", "imul", "multiply"),
    *("div", "rdiv", "idiv", "divide", "truediv", "rtruediv", "itruediv", "true_divide", "pow"),
    *("rpow", "ipow", "eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "greater_equal"),
    *("less_equal", "where", "masked_fill", "fill", "lerp", "addcmul", "addcdiv"),
}
# Those in which an integer may be an index or a size.
_TAKE_FLOATS = {"full", "full_like", "new_full", "setitem"}
# Those that round the number to the dtype of their result.
_FILLS = {"fill", "full", "full_like", "new_full"}
_INTERPOLATING = {"lerp"}  # the weight has the dtype of the tensors


def with_operands(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a torch function with tensors or numbers in place of traced numbers."""
    if func in MAKING_RULES or func is Tensor.__deepcopy__:  # its memo may have traced numbers
        return args, kwargs
    leaves, spec = pytree.flatten((args, kwargs))
    if not any(isinstance(leaf, TracedNumber) for leaf in leaves):
        return args, kwargs
    name = getattr(func, "__name__", "").strip("_")
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def operand(leaf: Any) -> Any:
        if not isinstance(leaf, TracedNumber):
            return leaf
        if type(leaf) is HostArray and name == "getitem":
            return leaf.tensor()
        is_float = isinstance(leaf, float)
        if name in _TAKE_TENSORS or (name in _TAKE_FLOATS and is_float):
            return leaf.as_tensor(*_kind_of_number(name, is_float, tensors))
        return leaf.plain()

    args, kwargs = pytree.unflatten([*map(operand, leaves)], spec)
    return args, kwargs


def _torch_function(
    cls: type, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
) -> Any:
    args, kwargs = with_operands(func, args, kwargs or {})
    return func(*args, **kwargs)


# With it, torch accepts the number as any argument; a capture's mode comes first.
TracedNumber.__torch_function__ = classmethod(_torch_function)  # type: ignore[attr-defined]


def _kind_of_number(
    name: str, is_float: bool, tensors: Sequence[Tensor]
) -> tuple[torch.dtype, torch.device]:
    """The dtype and device of a tensor without dimensions that acts as a Python number would.

    Beside a tensor with dimensions, its dtype does not matter.
    """
    wide = torch.float64 if is_float else torch.int64
    device = tensors[0].device if tensors else CPU
    if name in _FILLS:
        return wide, device
    floats = [x for x in tensors if x.is_floating_point() or x.is_complex()]
    if not floats and is_float:
        return torch.get_default_dtype(), device
    alike = floats or [x for x in tensors if x.dtype is not torch.bool]
    if not alike or (any(x.dim() > 0 for x in alike) and name not in _INTERPOLATING):
        return torch.float64 if floats else wide, device
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in alike])
    return dtype.to_real() if dtype.is_complex else dtype, device


def _making(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes a tensor of traced floats, also in lists, as torch makes one of numbers."""

    @functools.wraps(func)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        *before, data = args
        if type(data) is HostArray:
            return _of_array(func, data.tensor(), *before, **kwargs)
        leaves, spec = pytree.flatten(data)
        if not any(isinstance(leaf, TracedNumber) for leaf in leaves):
            return func(*args, **kwargs)
        like = func(*before, pytree.unflatten([*map(_placeholder, leaves)], spec), **kwargs)
        wide = torch.float64 if any(isinstance(leaf, float) for leaf in leaves) else torch.int64
        tensors = [_as_tensor(leaf, wide) for leaf in leaves]
        values = torch.stack(tensors).reshape(like.shape)
        return values.to(like).requires_grad_(like.requires_grad)

    return make


def _of_array(
    func: Any, x: Tensor, *like: Tensor, requires_grad: bool = False, **kwargs: Any
) -> Tensor:
    """Makes the tensor that ``func`` makes of an array, which may be this one."""
    for tensor in like:  # of new_tensor
        kwargs = {"dtype": tensor.dtype, "device": tensor.device, **kwargs}
    if kwargs.keys() - {"dtype", "device"}:
        raise UnknownArrayUseError
    return x.to(**kwargs, copy=func is not torch.as_tensor).requires_grad_(requires_grad)


def _placeholder(leaf: Any) -> Any:
    kind = float if isinstance(leaf, float) else int
    return kind(0) if isinstance(leaf, TracedNumber) else leaf


def _as_tensor(leaf: Any, wide: torch.dtype) -> Tensor:
    if isinstance(leaf, TracedNumber):
        return leaf.as_tensor(wide, CPU)
    return torch.as_tensor(leaf, dtype=wide)


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

# Functions of the module math.

_QUESTIONS = {math.isfinite: torch.isfinite, math.isinf: torch.isinf, math.isnan: torch.isnan}
_OF_NUMBERS = (math.pow, math.atan2, math.hypot, math.fmod, math.degrees, math.radians)


def _number_in(value: Any) -> Any:
    """The number of a tensor, which math would convert by ``float``; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.is_floating_point() else value


def _traced(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = (*map(_number_in, args),)
        if kwargs or not any(isinstance(arg, TracedNumber) for arg in args):
            return func(*args, **kwargs)
        if func in _QUESTIONS and type(args[0]) is TensorNumber:
            return bool(_QUESTIONS[func](args[0].tensor))
        return compute(func, args)

    return call


REPLACED_IN_TORCH = frozenset({"from_numpy"})


def _trace_math() -> Callable[[], None]:
    functions = (*MATH, *_QUESTIONS, *_OF_NUMBERS)
    from_numpy = torch.from_numpy
    from_array = functools.wraps(from_numpy)(
        lambda x: x.tensor() if type(x) is HostArray else from_numpy(x)
    )
    return replace_attributes(
        [
            *((math, func.__name__, _traced(func)) for func in functions),
            *((torch, name, from_array) for name in REPLACED_IN_TORCH),
        ]
    )


# Inside, functions of the module math trace, and torch.from_numpy.
math_traced = SharedChange(_trace_math)

# Conversions by int and float, which C code makes. So a class that does the same stands for them
# among the globals of modules whose code calls them, and uses them otherwise in isinstance alone.
# So does one for len, where containers grow.


class _Conversion(type):
    """The class of the classes that stand for int and float."""

    kind: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            (value,) = args
            if isinstance(value, Tensor) and cls.kind is float and value.numel() == 1:
                value = value.reshape(())
                value = (value if value.is_floating_point() else value.double()).item()
            if isinstance(value, TracedNumber):
                return value.converted(cls.kind)
            args = (value,)
        return cls.kind(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.kind)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.kind)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.kind, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.kind

    def __hash__(cls) -> int:
        return hash(cls.kind)


class _Length(_Conversion):
    """The class of the class that stands for len."""

    def __call__(cls, value: Any) -> Any:
        traced = getattr(type(value), "traced_length", None)  # see growing_containers.py
        return len(value) if traced is None else traced(value)


_CONVERSIONS: dict[str, Any] = {
    **{kind.__name__: _Conversion(kind.__name__, (), {"kind": kind}) for kind in (float, int)},
    "len": _Length("len", (), {"kind": len}),
}
CONVERTED = frozenset(_CONVERSIONS)
_lock = threading.Lock()
_replaced: dict[tuple[int, str], int] = {}  # the captures that need a replacement


@contextlib.contextmanager
def conversions_traced(modules: Sequence[dict[str, Any]], lengths: bool) -> Iterator[None]:
    """Inside, int and float trace in code with these globals, and if ``lengths``, len."""
    pairs = [
        (variables, name)
        for variables in {id(module): module for module in modules}.values()
        for name in _CONVERSIONS
        if name != "len" or lengths
        if variables.get(name, _CONVERSIONS[name]) is _CONVERSIONS[name]
        and _is_only_called(variables, name)
    ]
    with _lock:
        for variables, name in pairs:
            _replaced[id(variables), name] = _replaced.get((id(variables), name), 0) + 1
            variables[name] = _CONVERSIONS[name]
    try:
        yield
    finally:
        with _lock:
            for variables, name in pairs:
                _replaced[id(variables), name] -= 1
                if not _replaced[id(variables), name]:
                    del _replaced[id(variables), name]
                    if variables.get(name) is _CONVERSIONS[name]:
                        del variables[name]


def is_conversion(value: Any) -> bool:
    return issubclass(type(value), _Conversion)


def _is_only_called(variables: dict[str, Any], name: str) -> bool:
    uses = [use for code in _codes_of(variables) for use in _uses(code, name)]
    return "call" in uses and "value" not in uses


def _codes_of(variables: dict[str, Any]) -> Iterator[types.CodeType]:
    for value in [*variables.values()]:
        members = [*vars(value).values()] if type(value) is type else [value]
        for member in members:
            if isinstance(member, (staticmethod, classmethod, property)):
                member = member.fget if isinstance(member, property) else member.__func__
            if isinstance(member, types.FunctionType) and member.__globals__ is variables:
                yield member.__code__


_BUILDING = ("LOAD_GLOBAL", "BUILD_TUPLE", "BINARY_OP", "CACHE")  # the second operand of isinstance


@functools.lru_cache(4096)
def _uses(code: types.CodeType, name: str) -> frozenset[str]:
    """How code uses a global: ``"call"``, and ``"value"`` for all else but isinstance."""
    uses = set[str]()
    for inner in codes_in(code):
        instructions = [*dis.get_instructions(inner)]
        for place, instruction in enumerate(instructions):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval == name:
                if "NULL" in instruction.argrepr:  # from Python 3.11 on, a call follows
                    uses.add("call")
                elif not _is_for_isinstance(instructions, place):
                    uses.add("value")
    return frozenset(uses)


def _is_for_isinstance(instructions: Sequence[dis.Instruction], place: int) -> bool:
    before = [instruction.argval for instruction in instructions[max(0, place - 8) : place]]
    after = (instruction.opname for instruction in instructions[place + 1 :])
    following = next((name for name in after if name not in _BUILDING), "")
    return "isinstance" in before and following in ("PRECALL", "CALL")
