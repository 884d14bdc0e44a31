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
from torch.fx import Node

from torchlayers import _C, tree
from torchlayers.errors import RecomputationError

_torch: Any = torch  # what it keeps for its own use has no types

NUMBER = "recomputation"  # in a node's meta; nothing where nothing is recomputed


class Recomputations:
    """Those of one recording, which tells of each operator at the bottom of the stack."""

    def __init__(self) -> None:
        self._is_watching = False
        self._drawn: list[tuple[Any, Any]] = []  # operators with what they drew
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
        # What is drawn may be written to.
        self._drawn.append((func, tree.map_tensors(torch.clone, result)))
        return result

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        place = self._given[-1]
        self._given[-1] += 1
        drawn, result = self._drawn[place] if place < len(self._drawn) else (None, None)
        if drawn is not func:
            raise RecomputationError(
                f"torchlayers: a checkpointed function drew random numbers by {func} when it was "
                "recomputed, and not at first. It has to do the same each time."
            )
        assert func is not None
        if func._schema.is_mutable:  # it fills its first argument, or out=
            return kwargs.get("out", args[0]).copy_(result)
        return tree.map_tensors(torch.clone, result)


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
