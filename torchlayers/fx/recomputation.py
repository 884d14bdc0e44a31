"""What is recomputed while a program is recorded to be compiled.

A checkpointed function is recorded once where it is called, and once more where a reverse pass asks
for what it has saved, after what that pass has computed by then: so whoever runs the recording
holds less. Random numbers are not drawn again, what was drawn is read again. What is recorded in a
recomputation, and in a pass from its first recomputation on, is marked with the number of the
recomputation (:data:`NUMBER`): it is not the same as what looks the same elsewhere.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import RecomputationError

_torch: Any = torch  # what it keeps for its own use has no types

NUMBER = "recomputation"  # in a node's meta; nothing where nothing is recomputed


class Recomputations:
    """Those of one recording, which tells of each operator at the bottom of the stack."""

    def __init__(self) -> None:
        self._is_watching = False
        self._drawn: list[_Drawn] = []
        self._given: list[int] = []  # by the recomputations under way: the next of those
        self._numbers: list[int] = []
        self._count = 0
        self._of_passes: dict[Any, int] = {}

    def here(self) -> int:
        """The place of what will be drawn from here on."""
        self._is_watching = True
        return len(self._drawn)

    @contextmanager
    def again(self, place: int) -> Iterator[None]:
        """Inside, what was drawn from that place on is read."""
        self._count += 1
        self._numbers.append(self._count)
        self._of_passes[_pass()] = self._count
        self._given.append(place)
        try:
            yield
        finally:
            self._given.pop()
            self._numbers.pop()

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's result, of an operator at the bottom."""
        if not self._is_watching:
            return func(*args, **kwargs)
        nodes = _graph()
        if self._count == 0 or nodes is None:
            return self._drawing(func, args, kwargs)
        last = nodes._root.prev
        result = self._drawing(func, args, kwargs)
        number = self._numbers[-1] if self._numbers else self._of_passes.get(_pass())
        if number is not None:
            node: Node = nodes._root.prev
            while node is not last:
                node.meta[NUMBER] = number
                node = node.prev
        return result

    def _drawing(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        if self._given:
            return self._read(func, args, kwargs)
        result = func(*args, **kwargs)
        self._drawn.append(_Drawn(func, result, _written(func, args, kwargs)))
        return result

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        place = self._given[-1]
        self._given[-1] += 1
        drawn = self._drawn[place] if place < len(self._drawn) else None
        if drawn is None or not drawn.is_by(func):
            raise RecomputationError(
                f"torchlayers: a checkpointed function drew random numbers by {func} when it was "
                "recomputed, and not at first. It has to do the same each time."
            )
        return drawn.read(func, _written(func, args, kwargs))


class _Drawn:
    """What a random operator wrote to its arguments, and returned."""

    def __init__(self, func: Any, result: Any, written: list[Tensor]) -> None:
        # Both may be written to later.
        self._func = func
        self._written = [x.clone() for x in written]
        self._result = pytree.map_tensors(torch.clone, result)

    def is_by(self, func: Any) -> bool:
        """Whether this operator draws the same: itself, or its other form, in place or not."""
        return func is self._func or _name(func) == _name(self._func) != ""

    def read(self, func: Any, written: list[Tensor]) -> Any:
        """The operator's result, once what it writes to holds what was written then."""
        if func is not self._func:  # one of them is in place
            drawn = self._written[0] if self._written else self._result
            return written[0].copy_(drawn) if written else drawn.clone()
        for x, then in zip(written, self._written, strict=True):
            x.copy_(then)
        places = _places_written(func)
        arguments = [func._schema.arguments[i].alias_info.before_set for i in places]
        returned = [each.alias_info for each in func._schema.returns]
        if written and any(returned):
            results = [written[arguments.index(alias.before_set)] for alias in returned]
            return results[0] if len(results) == 1 else tuple(results)
        return pytree.map_tensors(torch.clone, self._result)


def _name(func: Any) -> str:
    """The same for the operator in place and not, if it draws one tensor; otherwise empty."""
    schema = func._schema
    written = len(_places_written(func))
    draws_one = len(schema.returns) == 1 and written == _returns_written(func)
    return str(schema.name).rstrip("_") if draws_one else ""


def _returns_written(func: Any) -> int:
    """How many of its results are arguments that it has written to."""
    return sum(each.alias_info is not None for each in func._schema.returns)


def _places_written(func: Any) -> list[int]:
    return [
        i
        for i, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    named = [each.name for each in func._schema.arguments]
    given = [args[i] if i < len(args) else kwargs.get(named[i]) for i in _places_written(func)]
    return [x for x in given if isinstance(x, Tensor)]


def _graph() -> Any:
    from torch.fx.experimental import proxy_tensor

    mode: Any = proxy_tensor.get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def _pass() -> Any:
    """The pass that runs on this thread, which no other ever is."""
    return _C.number_of_pass(), _torch._C._current_graph_task_id()


class _Thread(threading.local):
    recorded: Recomputations | None = None


_thread = _Thread()


@contextmanager
def recorded(recomputations: Recomputations) -> Iterator[None]:
    """Inside, this thread records a program, and these are its recomputations."""
    outer, _thread.recorded = _thread.recorded, recomputations
    try:
        yield
    finally:
        _thread.recorded = outer


def recording() -> Recomputations | None:
    """Those of the program that this thread records, if it does."""
    return _thread.recorded if is_recording() else None


def may_recompute() -> bool:
    """Not where somebody else records a program: random numbers would be drawn twice in it."""
    return not is_recording() or _thread.recorded is not None


def is_recording() -> bool:
    """Whether a program is recorded to be compiled."""
    key = _torch._C._TorchDispatchModeKey.PROXY
    return _torch._C._get_dispatch_mode(key) is not None


def mark_like(node: Node, other: Node) -> None:
    """A node that stands for another one, or for a part of what that computes."""
    if NUMBER in other.meta:
        node.meta[NUMBER] = other.meta[NUMBER]
