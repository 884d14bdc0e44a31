"""Tracks which step of which loop a function is in, for taps.

A named value inside a loop occurs once in each step. The loop announces each step as it begins, and
listeners (`torchlayers.taps`) combine the steps' values: they stack them in a dimension for the
loop, or, if the steps are chunks of a batch, concatenate them along the batch dimension.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, tracing_state


class _Thread(threading.local):
    def __init__(self) -> None:
        self.listeners: tuple[Any, ...] = ()  # the innermost last
        self.loops: list[TappedLoop] = []  # the running loops, if there are listeners


thread = _Thread()


@contextmanager
def without_listeners() -> Iterator[None]:
    """Runs a function whose values no listener is to meet: it is about to run once more."""
    outer, thread.listeners = thread.listeners, ()
    try:
        yield
    finally:
        thread.listeners = outer


class SilentLoop:
    """A loop without listeners."""

    def begin(self, start: int, size: int | None = None) -> None:
        """Announces a step: its index, or the start and size of its chunk of the batch."""

    def running(self) -> AbstractContextManager[Any]:
        """Returns a context to run the steps in."""
        return nullcontext()  # supported by Dynamo


_silent_loop = SilentLoop()


class TappedLoop(SilentLoop):
    """A running loop.

    Args:
        api: its name in error messages.
        length: the number of its steps, or samples. If it is 0, the loop runs one step on zeros.
    """

    def __init__(self, api: str, length: int) -> None:
        self.api, self.length = api, length
        layers = enumerate(_C.current_stack(), 1)
        self.vmaps = [level for level, layer in layers if layer is not None and layer[0] == "vmap"]
        self.start = 0
        self.size: int | None = None

    def begin(self, start: int, size: int | None = None) -> None:
        self.start, self.size = start, size

    @contextmanager
    def running(self) -> Iterator[None]:
        thread.loops.append(self)
        try:
            yield
        finally:
            thread.loops.pop()

    def dim(self, level: int) -> int:
        """The loop's dimension in values at that level: after those of the vmaps in between."""
        return sum(vmap > level for vmap in self.vmaps)

    def slice_of_step(self, tensor: Tensor, level: int) -> Tensor:
        """Returns the current step's part of a tensor that has the loop's dimension."""
        dim = self.dim(level)
        if not self.length:
            return tensor.sum(dim)  # the sum over no elements
        if self.size is None:
            return tensor.select(dim, self.start)
        return tensor.narrow(dim, self.start, self.size)


class StepValues:
    """The values with one name in a loop's steps, by step; in nested loops, by each loop's step."""

    def __init__(self, loops: Sequence[TappedLoop], level: int) -> None:
        self.loops, self.level = tuple(loops), level
        self.values: dict[tuple[int, ...], Any] = {}

    def put(self, loops: Sequence[TappedLoop], value: Any) -> bool:
        """Adds the value of the current step; returns False if there is one, or loops differ."""
        place = tuple(loop.start for loop in loops)
        if loops[0] is not self.loops[0] or len(loops) != len(self.loops) or place in self.values:
            return False
        self.values[place] = value
        return True

    def whole(self) -> Any:
        """Returns the values of all steps combined; None if a step has none."""
        return self._whole(self.values, self.loops)

    def _whole(self, values: dict[tuple[int, ...], Any], loops: tuple[TappedLoop, ...]) -> Any:
        if not loops:
            return values[()]
        first, *rest = loops
        columns: dict[int, dict[tuple[int, ...], Any]] = {}
        for place, value in values.items():
            columns.setdefault(place[0], {})[place[1:]] = value
        if first.size is None and len(columns) != max(first.length, 1):
            return None
        parts = [self._whole(columns[start], tuple(rest)) for start in sorted(columns)]
        if any(part is None for part in parts):
            return None
        dim = first.dim(self.level)

        def join(column: tuple[Tensor, ...]) -> Tensor:
            if first.size is not None:
                return torch.cat(column, dim)
            return torch.stack(column, dim).narrow(dim, 0, first.length)

        leaves, spec = zip(*(pytree.flatten(part) for part in parts), strict=True)
        return pytree.unflatten(
            [
                join(column) if isinstance(column[0], Tensor) else column[0]
                for column in zip(*leaves, strict=True)
            ],
            spec[0],
        )


def begin_loop(api: str, length: int) -> SilentLoop:
    """Returns the object by which a loop that begins announces its steps."""
    if tracing_state.is_tracing() or not thread.listeners:
        return _silent_loop
    return TappedLoop(api, length)
