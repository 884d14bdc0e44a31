"""Handles checkpointed functions in a capture: their recomputations and random draws.

A checkpointed function is captured once where it is called, and again where a reverse pass needs
its residuals, after the nodes of that pass so far: so running the graph takes less memory. The
second time, random draws are read back instead of repeated. Nodes captured in a recomputation, or
in a pass after its first recomputation, are tagged with the recomputation's number
(:data:`RECOMPUTATION_ID`), so that they are not merged with equal nodes elsewhere.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers import _C
from torchlayers.core import operator_schema, pytree
from torchlayers.core.errors import RecomputationError
from torchlayers.core.operator_schema import arguments_written, places_written, schema_of
from torchlayers.core.torch_private import torch_c

RECOMPUTATION_ID = "recomputation"  # a key in node.meta; absent if nothing is recomputed


class Recomputations:
    """The recomputations of one capture, which passes each operator at the bottom to call()."""

    def __init__(self) -> None:
        self._is_watching = False
        self._drawn: list[_RandomResult] = []
        self._next_draws: list[int] = []  # for each active recomputation, its next index in _drawn
        self._numbers: list[int] = []
        self._count = 0
        self._of_passes: dict[Any, int] = {}

    def position(self) -> int:
        """Returns the index of the next random draw."""
        self._is_watching = True
        return len(self._drawn)

    @contextmanager
    def replaying(self, place: int) -> Iterator[None]:
        """Inside, the draws from that index on are read back."""
        self._count += 1
        self._numbers.append(self._count)
        self._of_passes[_pass()] = self._count
        self._next_draws.append(place)
        try:
            yield
        finally:
            self._next_draws.pop()
            self._numbers.pop()

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator at the bottom of the stack and returns its result."""
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
                node.meta[RECOMPUTATION_ID] = number
                node = node.prev
        return result

    def _drawing(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not operator_schema.is_random(func):
            return func(*args, **kwargs)
        if self._next_draws:
            return self._read_draw(func, args, kwargs)
        result = func(*args, **kwargs)
        self._drawn.append(_RandomResult(func, result, arguments_written(func, args, kwargs)))
        return result

    def _read_draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        place = self._next_draws[-1]
        self._next_draws[-1] += 1
        drawn = self._drawn[place] if place < len(self._drawn) else None
        if drawn is None or not drawn.is_by(func):
            raise RecomputationError(
                f"torchlayers: a checkpointed function drew random numbers with {func} when it was "
                "recomputed, but not in the first run. It must do the same each time."
            )
        return drawn.write_draw(func, arguments_written(func, args, kwargs))


class _RandomResult:
    """Saves the writes and the result of a random operator."""

    def __init__(self, func: Any, result: Any, written: list[Tensor]) -> None:
        # Copies, as both may be written to later.
        self._func = func
        self._written = [x.clone() for x in written]
        self._result = pytree.map_tensors(torch.clone, result)

    def is_by(self, func: Any) -> bool:
        """Whether func is the saved operator, or its in-place or out-of-place variant."""
        return func is self._func or _name(func) == _name(self._func) != ""

    def write_draw(self, func: Any, written: list[Tensor]) -> Any:
        """Repeats the saved writes and returns the operator's result."""
        if func is not self._func:  # one of them is the in-place variant
            drawn = self._written[0] if self._written else self._result
            return written[0].copy_(drawn) if written else drawn.clone()
        for x, then in zip(written, self._written, strict=True):
            x.copy_(then)
        places = places_written(func)
        arguments = [schema_of(func).arguments[i].alias_info.before_set for i, _ in places]
        returned = [result.alias_info for result in schema_of(func).returns]
        if written and any(returned):
            results = [written[arguments.index(alias.before_set)] for alias in returned]
            return results[0] if len(results) == 1 else tuple(results)
        return pytree.map_tensors(torch.clone, self._result)


def _name(func: Any) -> str:
    """The name shared by in-place and out-of-place variants that draw one tensor; else empty."""
    schema = schema_of(func)
    written = len(places_written(func))
    draws_one = len(schema.returns) == 1 and written == _returns_written(func)
    return str(schema.name).rstrip("_") if draws_one else ""


def _returns_written(func: Any) -> int:
    """How many of the operator's results alias arguments."""
    return sum(result.alias_info is not None for result in schema_of(func).returns)


def _proxy_mode() -> Any:
    from torch.fx.experimental import proxy_tensor

    return proxy_tensor.get_proxy_mode()


def _graph() -> Any:
    mode = _proxy_mode()
    return None if mode is None else mode.tracer.graph


def _pass() -> Any:
    """A unique identifier of the reverse pass that runs on this thread."""
    return _C.number_of_pass(), torch_c._current_graph_task_id()


class _Thread(threading.local):
    recorded: Recomputations | None = None


_thread = _Thread()


@contextmanager
def track_recomputations(recomputations: Recomputations) -> Iterator[None]:
    """Inside, this thread captures a program, with these recomputations."""
    outer, _thread.recorded = _thread.recorded, recomputations
    try:
        yield
    finally:
        _thread.recorded = outer


def current_recomputations() -> Recomputations | None:
    """The recomputations of the program that this thread captures, or None."""
    return _thread.recorded if is_capturing() else None


def is_recomputation_allowed() -> bool:
    """Whether recomputing is safe; in a foreign capture, random numbers would be drawn twice."""
    return not is_capturing() or _thread.recorded is not None


def is_capturing() -> bool:
    """Whether a program is being captured, by torchlayers or another tracer."""
    return _proxy_mode() is not None


def mark_like(node: Node, other: Node) -> None:
    """Tags a node that replaces another, or a part of another, with the same recomputation."""
    if RECOMPUTATION_ID in other.meta:
        node.meta[RECOMPUTATION_ID] = other.meta[RECOMPUTATION_ID]
