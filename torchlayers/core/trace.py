"""What the layers did: a record of every operator's way through the stack."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from torchlayers import _C

__all__ = ["TraceEvent", "trace"]


class TraceEvent(NamedTuple):
    """One step of one operator through one layer."""

    step: str
    op: str
    layer: str
    level: int

    def __repr__(self) -> str:
        return f"{self.layer} {self.step} {self.op}"


@contextlib.contextmanager
def trace() -> Iterator[list[TraceEvent]]:
    """Records each step of each operator inside the ``with`` block, on every thread.

    With ``TORCHLAYERS_TRACE=1`` in the environment the steps are also printed to stderr as
    they happen, and with ``TORCHLAYERS_TRACE=2`` the stack and the thread's included and excluded
    dispatch keys too, as the front and the back find them. While nothing is recorded, tracing
    costs nothing.

    Yields:
        A list that is filled when the block ends. An event has ``step`` ("process": a layer
        got an operator; "send_down": it hands it to the layers below; "rule": it follows a rule
        of its own there; "pull_back": a reverse pass begins), ``op`` ("aten::mul.Tensor"; of a
        "pull_back" who runs it, "torchlayers" or "autograd"), ``layer`` ("grad (level 1)"; "vjp"
        where it has ended) and ``level`` (0 there).
    Example:
        >>> with trace() as events:
        ...     _ = torchlayers.vmap(torch.neg)(torch.ones(2))
        >>> events
        [vmap (level 1) process aten::neg, vmap (level 1) send_down aten::neg]
    """
    events: list[TraceEvent] = []
    _C.start_recording()
    try:
        yield events
    finally:
        events.extend(TraceEvent(*event) for event in _C.stop_recording())
