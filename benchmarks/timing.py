"""Timing of several implementations of the same work, side by side."""

import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import device

Work = Callable[[], Any]
Timer = Callable[[], float]


@dataclass(frozen=True)
class Effort:
    """How long to measure: the number of rounds, and the seconds of a block in each round."""

    rounds: int
    block: float


@dataclass(frozen=True)
class Timing:
    """The median of repeated measurements, and their interquartile range."""

    median: float
    spread: float

    @classmethod
    def of(cls, measurements: Sequence[float]) -> "Timing":
        lower, median, upper = statistics.quantiles(measurements, n=4, method="inclusive")
        return cls(median, upper - lower)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.spread:.2f})"

    def scaled(self, factor: float) -> "Timing":
        return Timing(self.median * factor, self.spread * factor)


def compare(
    peers: Mapping[str, Work], effort: Effort, beside: Mapping[str, Work] | None = None
) -> dict[str, Timing]:
    """Seconds per call of each peer, measured only after checking that all return the same.

    The works in ``beside`` do something else, and are timed together with the peers.

    Raises:
        AssertionError: two peers return different results.
    """
    check_same(peers)
    return by_turns({**peers, **(beside or {})}, effort)


def by_turns(
    works: Mapping[str, Work],
    effort: Effort,
    timer: Timer = time.perf_counter,
    inside: Mapping[str, Callable[[], AbstractContextManager[Any]]] | None = None,
) -> dict[str, Timing]:
    """Seconds per call of each; with time.process_time CPU seconds, for a busy machine.

    A device is timed until it has finished, by the clock.

    A round times one block of calls of each, so that a machine that slows down does so for all of
    them; every round starts with a different one. Each block runs inside its context, if it has
    one.
    """
    with device.timed():
        return _by_turns(works, effort, timer, inside or {})


def _by_turns(
    works: Mapping[str, Work],
    effort: Effort,
    timer: Timer,
    inside: Mapping[str, Callable[[], AbstractContextManager[Any]]],
) -> dict[str, Timing]:
    within = {name: inside.get(name, nullcontext) for name in works}
    calls = {}
    for name, work in works.items():
        with within[name]():
            calls[name] = _calls_per_block(work, effort.block, timer)
    measured: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for _ in range(effort.rounds):
        for name in names:
            with within[name]():
                measured[name].append(_seconds_per_call(works[name], calls[name], timer))
        names.append(names.pop(0))
    return {name: Timing.of(seconds) for name, seconds in measured.items()}


def least_seconds(work: Work, repetitions: int) -> float:
    """CPU seconds, the minimum of some repetitions: the time of the work without disturbances."""
    seconds = []
    for _ in range(repetitions):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def least_within(work: Work, seconds: float, repetitions: int = 5) -> float:
    """The minimum of the repetitions that fit into the seconds, or of at least ``repetitions``."""
    least = least_seconds(work, repetitions)
    return min(least, least_seconds(work, round(seconds / least))) if least < seconds else least


def check_same(peers: Mapping[str, Work]) -> None:
    """Raises AssertionError unless all peers return finite results, equal up to rounding."""
    results = [(name, work()) for name, work in peers.items()]
    for first, expected in results[:1]:
        _check_finite(first, expected)
    for name, actual in results[1:]:
        torch.testing.assert_close(
            actual,
            expected,
            msg=lambda reason, name=name: f"{name} and {first} do different work.\n{reason}",
        )


def _check_finite(name: str, result: Any) -> None:
    for tensor in result if isinstance(result, tuple) else (result,):
        if not tensor.isfinite().all():
            raise AssertionError(f"{name} returns values that are not finite: {tensor}")


def _calls_per_block(work: Work, block: float, timer: Timer) -> int:
    _seconds_per_call(work, 5, timer)  # warm-up
    return max(1, round(block / _seconds_per_call(work, 5, timer)))


def _seconds_per_call(work: Work, calls: int, timer: Timer) -> float:
    if device.is_processor():
        return timeit.timeit(work, number=calls, timer=timer) / calls
    block = timeit.Timer(work)
    return device.seconds(lambda: block.timeit(calls)) / calls
