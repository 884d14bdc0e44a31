"""Recording: what a program calls, and what the layers do to it."""

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, overload

from torchlayers import _C
from torchlayers.core.annotations import P, R
from torchlayers.core.function_checks import check_function
from torchlayers.core.html_table import html_frame, html_lines
from torchlayers.core.layer_stack import transformed
from torchlayers.core.trace import chrome, html, summary, tree
from torchlayers.core.trace.calls import TracedCall, calls_of, walk

LIMIT = 100_000
MOST_CALLS_OF_NOTEBOOK = 5_000


class Trace:
    """What was called between entering and leaving it; see :func:`torchlayers.trace`.

    ``print`` shows it as a tree, a notebook as the page of ``to_html``. ``calls`` are the outermost
    calls, each with the calls that it made as ``children``; iterating goes over all of them.
    ``dropped`` is how many calls at the beginning were left out because of the limit; ``seconds``
    how long the block took; ``result`` what the function returned if a function was traced.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.calls: list[TracedCall] = []
        self.dropped = 0
        self.seconds = 0.0
        self.result: Any = None
        self._limit = limit
        self._started: int | None = None

    def __enter__(self) -> "Trace":
        if self._started is not None:
            raise RuntimeError("torchlayers: trace: this trace is being recorded already.")
        self._started = _C.start_trace(self._limit)
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._begin
        assert self._started is not None
        first, records, self.dropped = _C.stop_trace(self._started)
        self._started = None
        self.calls = calls_of(first, records, time.time_ns())

    def __iter__(self) -> Iterator[TracedCall]:
        yield from walk(self.calls)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<trace of {len(self)} calls in {self.seconds * 1e3:.1f} ms>"

    def __str__(self) -> str:
        return self.tree()

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of to_html, or of a long trace the summary."""
        if len(self) <= MOST_CALLS_OF_NOTEBOOK:
            return html_frame(html.page(self.calls, self.dropped, self.summary()), height=480)
        line = f"{len(self):,} calls; to_html(path) writes the page with all of them."
        return html_lines([line]) + self.summary()._repr_html_()

    def tree(self, *, times: bool = False, lines: bool = True) -> str:
        """The calls as an indented tree, a line each.

        A line has the operator with the dtypes and shapes of its tensors, the layer at which it
        arrives and how the layer deals with it, and the user's line. ``f32[2]@0`` is a tensor whose
        samples have the shape (2,), batched at dimension 0 of its value.

        Args:
            times: adds how long each call took, in microseconds.
            lines: shows the user's lines.
        """
        return tree.text(self.calls, self.dropped, times=times, lines=lines)

    def summary(self) -> "summary.Summary":
        """Where the time went: a table by operator and layer, which ``print`` shows.

        Loops over samples, and copies that no line of the program asks for, are marked.
        """
        return summary.Summary.from_calls(self.calls, self.seconds)

    def to_chrome(
        self, path: str | os.PathLike[str], *, profile: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes it as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing, a lane a layer.

        Args:
            path: the file to write.
            profile: a trace that torch.profiler exported (``export_chrome_trace``) of the same
                run; the lanes are added to it.
        Raises:
            ValueError: the profile is not such a file.
        """
        chrome.write(self.calls, path, profile)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page that needs no network: lanes, search, every call's way, the summary."""
        html.write(self.calls, self.dropped, self.summary(), path)


@overload
def trace(func: None = None, *, limit: int = LIMIT) -> Trace: ...
@overload
def trace(func: Callable[P, R], *, limit: int = LIMIT) -> Callable[P, Trace]: ...


def trace(func: Callable[P, R] | None = None, *, limit: int = LIMIT) -> Trace | Callable[P, Trace]:
    """Records every operator at every layer that it passes, on all threads.

    ``with torchlayers.trace() as t:`` records a block, ``torchlayers.trace(f)(*args)`` a call of f,
    whose result is ``t.result``. A call that is recorded costs about 2 microseconds, which the
    times contain; where nothing is recorded, tracing costs nothing.

    Args:
        func: the function to call, or None for a ``with`` block.
        limit: how many calls to keep. Of more, the last are kept.
    Returns:
        A :class:`Trace`: ``print(t)`` shows a tree, ``print(t.summary())`` where the time went;
        ``t.to_html(path)`` and ``t.to_chrome(path)`` write pictures. Or, given func, a function
        that returns one.
    Raises:
        CallError: func is neither None nor callable.
        RuntimeError: the limit is below 1.
    Example:
        >>> def f(x):
        ...     return torch.sin(x)
        >>> t = torchlayers.trace(torchlayers.vmap(f))(torch.ones(3))
        >>> print(t.tree(lines=False))
        vmap (level 1) of 3 samples
          sin(f32[]@0) -> f32[]@0  vmap (level 1), typed kernel
            sin(f32[3]) -> f32[3]  kernel
    """
    if func is None:
        return Trace(limit)
    advice = "Trace a block of code by `with torchlayers.trace() as t:`."
    check_function("trace", "func", func, advice=advice)

    def traced(*args: P.args, **kwargs: P.kwargs) -> Trace:
        with Trace(limit) as recorded:
            recorded.result = func(*args, **kwargs)
        return recorded

    return transformed(func, traced)
