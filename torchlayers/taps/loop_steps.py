"""Which step of which loop a function is in, for taps.

A value that has a name has one in each step of a loop. A loop says so where it begins a step, and
those who listen (`torchlayers.taps`) put the steps together: side by side in a dimension of the
loop's, or, where the steps are parts of a batch, one after the other in the batch's.
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
        self.loops: list[Loop] = []  # that are under way, while anyone listens


thread = _Thread()


class Unheard:
    """A loop, where nobody listens."""

    def begin(self, start: int, size: int | None = None) -> None:
        """A step begins: that of this number, or that of a part of the batch."""

    def under_way(self) -> AbstractContextManager[Any]:
        """To be entered around the steps."""
        return nullcontext()  # which Dynamo knows


_unheard = Unheard()


class Loop(Unheard):
    """A loop that is under way.

    Args:
        api: what errors call it.
        length: how many steps it has, or samples. One without any runs a step on zeros.
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
    def under_way(self) -> Iterator[None]:
        thread.loops.append(self)
        try:
            yield
        finally:
            thread.loops.pop()

    def dim(self, level: int) -> int:
        """Its dimension in what a listener of that level sees: behind those of vmaps around it."""
        return sum(vmap > level for vmap in self.vmaps)

    def step_of(self, tensor: Tensor, level: int) -> Tensor:
        """The step's part of a tensor that has the dimension."""
        dim = self.dim(level)
        if not self.length:
            return tensor.sum(dim)  # of nothing
        if self.size is None:
            return tensor.select(dim, self.start)
        return tensor.narrow(dim, self.start, self.size)


class Steps:
    """What a loop's steps have of one name; where loops are in loops, by the step of each."""

    def __init__(self, loops: Sequence[Loop], level: int) -> None:
        self.loops, self.level = tuple(loops), level
        self.found: dict[tuple[int, ...], Any] = {}

    def put(self, loops: Sequence[Loop], value: Any) -> bool:
        """False where this step of this loop has one."""
        place = tuple(loop.start for loop in loops)
        if loops[0] is not self.loops[0] or len(loops) != len(self.loops) or place in self.found:
            return False
        self.found[place] = value
        return True

    def whole(self) -> Any:
        """All together; None where a step has none."""
        return self._whole(self.found, self.loops)

    def _whole(self, found: dict[tuple[int, ...], Any], loops: tuple[Loop, ...]) -> Any:
        if not loops:
            return found[()]
        first, *rest = loops
        columns: dict[int, dict[tuple[int, ...], Any]] = {}
        for place, value in found.items():
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


def loop(api: str, length: int) -> Unheard:
    """One that begins."""
    if tracing_state.is_tracing() or not thread.listeners:
        return _unheard
    return Loop(api, length)
