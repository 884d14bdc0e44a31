"""Replaces the captured tensors of a function that is spread over ranks.

They are replicated on all ranks, like arguments with in_dim None, and their gradients are summed
over the ranks too. So the same operator is applied to them before the call, and a copy of the
function is called that captures its results: with other values in its closure, defaults and
globals, and other parameters in the modules among these. Tensors captured in another way, such as
attributes of an object, are not replaced, and MeshExecution raises an error for them.
"""

import dis
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from torchlayers import _C
from torchlayers.core.code_objects import codes_in, names_in

_LIBRARIES = ("torch", "torchlayers")  # whose globals hold no tensors of the user's


class CapturedTensors:
    """The tensors that a function captures and that `is_wanted` selects."""

    def __init__(self, func: Callable[..., Any], is_wanted: Callable[[Tensor], bool]) -> None:
        self._func = func
        self._is_wanted = is_wanted
        self._looked_at: dict[int, tuple[Any, bool]] = {}  # by id: value, whether it holds a tensor
        self._modules: list[nn.Module] = []
        self._tensors: dict[int, Tensor] = {}
        self._holds(func)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self._tensors.values()]

    def replaced(self, tensors: Sequence[Tensor]) -> Callable[..., Any]:
        """Returns a copy of the function that captures these tensors instead."""
        copies = dict(zip(self._tensors, tensors, strict=True))
        function = _ClosureCopier(self, copies).copy(self._func)
        for module in self._modules:
            named = [*module.named_parameters(), *module.named_buffers()]
            members = {name: copies[id(tensor)] for name, tensor in named if id(tensor) in copies}
            function = functools.partial(_call_with, module, function, members)
        return function  # type: ignore[no-any-return]

    def holds(self, value: Any) -> bool:
        return self._looked_at.get(id(value), (None, False))[1]

    def _holds(self, value: Any) -> bool:
        if id(value) not in self._looked_at:
            self._looked_at[id(value)] = value, False  # ends the recursion if it contains itself
            self._looked_at[id(value)] = value, self._look_at(value)
        return self.holds(value)

    def _look_at(self, value: Any) -> bool:
        if isinstance(value, Tensor):
            if is_wanted := self._is_wanted(value):
                self._tensors[id(value)] = value
            return is_wanted
        if isinstance(value, nn.Module):
            if any([self._holds(member) for member in (*value.parameters(), *value.buffers())]):
                self._modules.append(value)
            return False  # not copied: other tensors are put into it during the call
        return any([self._holds(member) for member in _members(value)])


class _ClosureCopier:
    """Copies the objects that hold captured tensors; all others are shared."""

    def __init__(self, captured: CapturedTensors, copies: dict[int, Any]) -> None:
        self._captured = captured
        self._copies = copies  # by the id of the original

    def copy(self, value: Any) -> Any:
        if not self._captured.holds(value):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            keywords = {name: self.copy(element) for name, element in value.keywords.items()}
            return functools.partial(self.copy(value.func), *map(self.copy, value.args), **keywords)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        if isinstance(value, dict):
            return type(value)((key, self.copy(element)) for key, element in value.items())
        members = map(self.copy, value)
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        cells = [
            types.CellType() if self._captured.holds(_content(cell)) else cell
            for cell in function.__closure__ or ()
        ]
        names = [name for name, element in _globals_of(function) if self._captured.holds(element)]
        namespace = function.__globals__
        copy = types.FunctionType(
            function.__code__, {**namespace} if names else namespace, closure=tuple(cells) or None
        )
        self._copies[id(function)] = copy  # stored now, as it may be in its own closure
        functools.update_wrapper(copy, function)
        vars(copy).update(vars(function))
        vars(copy).pop("__wrapped__", None)
        copy.__defaults__ = function.__defaults__ and tuple(map(self.copy, function.__defaults__))
        copy.__kwdefaults__ = function.__kwdefaults__ and {
            name: self.copy(element) for name, element in function.__kwdefaults__.items()
        }
        for name in names:
            copy.__globals__[name] = self.copy(namespace[name])
        for cell, of in zip(cells, function.__closure__ or (), strict=True):
            if cell is not of:
                cell.cell_contents = self.copy(of.cell_contents)
        return copy


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        contents = [(name, _content(cell)) for name, cell in cells]
        if contents and any(_may_hold(member) for _, member in contents):
            stored = {*_stored(value.__code__)}
            yield from (member for name, member in contents if name not in stored)
        yield from (member for _, member in _globals_of(value))
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (tuple, list)):
        yield from value


def _may_hold(value: Any) -> bool:
    kinds = (Tensor, nn.Module, tuple, list, dict, functools.partial)
    return isinstance(value, (*kinds, types.FunctionType, types.MethodType))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Returns the globals that the function reads; none if it assigns to variables outside it, as
    a copy's assignments would not be seen there."""
    namespace = function.__globals__
    if str(namespace.get("__name__")).partition(".")[0] in _LIBRARIES:
        return []
    names = names_in(function.__code__)
    read = [(name, namespace[name]) for name in names if _may_hold(namespace.get(name))]
    return read if read and not any(_stored(function.__code__)) else []


def _stored(code: types.CodeType) -> Iterator[str]:
    """Yields the global and free variables that the function assigns to."""
    free = {*code.co_freevars}
    for inner_code in codes_in(code):
        for instruction in dis.get_instructions(inner_code):
            name = instruction.argval
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
                instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and name in free
            ):
                yield name


def _call_with(
    module: nn.Module,
    func: Callable[..., Any],
    members: dict[str, Tensor],
    *args: Any,
    **kwargs: Any,
) -> Any:
    return _C.run_module(module, func, {**members}, args, kwargs, True, ())
