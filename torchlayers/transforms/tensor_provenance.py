"""Describes, for error messages, a tensor the transformed function did not create.

Such a tensor is an unbatched argument or a captured variable.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.code_objects import names_in


def describe_tensor(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensor: Tensor,
    level: int,
) -> str:
    """Returns the tensor's name, shape and origin: "`seen`, of shape (3,), which f captured".

    args and kwargs are those of the vmap of this level, which has not batched the tensor.
    """
    shape = tuple(tensor.shape)
    name = pytree.name_of(func)
    for argument, value in _arguments(func, args, kwargs):
        if place := _find(value, tensor, level):
            return (
                f"{_describe(argument, *place, shape)}, an argument of {name} that is not batched"
            )
    for variable, value in captured_variables(func):
        if place := _find(value, tensor, level):
            return f"{_describe(variable, *place, shape)}, which {name} captured"
    return f"a tensor of shape {shape} that {name} did not create"


def _describe(variable: str, path: str, is_view: bool, shape: tuple[int, ...]) -> str:
    return f"{'a view of ' if is_view else ''}`{variable}{path}`, of shape {shape}"


def _arguments(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    try:
        yield from inspect.signature(func).bind(*args, **kwargs).arguments.items()
    except (TypeError, ValueError):  # a builtin without a signature
        yield from ((f"args[{i}]", value) for i, value in enumerate(args))
        yield from kwargs.items()


def captured_variables(func: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yields the function's captured values: bound arguments, self, closure cells and globals."""
    func = inspect.unwrap(func)
    while isinstance(func, functools.partial):
        yield from ((f"args[{i}]", value) for i, value in enumerate(func.args))
        yield from func.keywords.items()
        func = inspect.unwrap(func.func)
    if isinstance(func, types.MethodType):
        yield "self", func.__self__
        func = func.__func__
    elif not isinstance(func, types.FunctionType):
        yield "self", func
        return
    if not isinstance(func, types.FunctionType):
        return
    cells = zip(func.__code__.co_freevars, func.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names_in(func.__code__):
        if name in func.__globals__:
            yield name, func.__globals__[name]


def _find(value: Any, tensor: Tensor, level: int) -> tuple[str, bool] | None:
    """Returns the tensor's path in the value, and whether the tensor is a view of what is there."""
    for path, candidate in tensors_in(value):
        if not _C.is_batched(candidate, level) and _C.share_memory(candidate, tensor):
            return path, candidate.shape != tensor.shape
    return None


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, nn.Module):
        for named in (value.named_parameters(), value.named_buffers()):
            yield from ((f".{name}", tensor) for name, tensor in named)
    elif isinstance(value, (Tensor, tuple, list, dict)):
        yield from (
            (path, leaf) for path, leaf in pytree.leaves_by_path(value) if isinstance(leaf, Tensor)
        )
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        for name, attribute in vars(value).items():
            if not isinstance(attribute, types.FunctionType):
                yield from (
                    (f".{name}{path}", tensor) for path, tensor in _tensors_in_attribute(attribute)
                )


def _tensors_in_attribute(value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, (Tensor, tuple, list, dict, nn.Module)):
        yield from tensors_in(value)
