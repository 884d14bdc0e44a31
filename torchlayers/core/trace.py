"""Tracing: a log of each operator's steps through the layer stack."""

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
    they happen; ``TORCHLAYERS_TRACE=2`` adds the layer stack and the thread's included and
    excluded dispatch keys at our front and back keys. When no trace is active, tracing costs
    nothing.

    Yields:
        A list that is filled when the block ends. An event has ``step`` ("process": a layer
        received an operator; "send_down": it passes it to the layers below; "rule": it applies
        its own rule; "pull_back": a backward pass begins), ``op`` ("aten::mul.Tensor"; for
        "pull_back" who runs the pass, "torchlayers" or "autograd"), ``layer`` ("grad (level 1)";
        "vjp" if the layer has ended) and ``level`` (then 0).
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
