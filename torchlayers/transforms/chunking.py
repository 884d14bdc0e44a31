"""Running a batch a chunk at a time: chunk_size, memory_budget and progress, for all transforms.

NOTE [Finding the chunk size]
``chunk_size="auto"`` takes the largest chunk that stays within the memory budget. Part of the
memory is there for any size, part comes with each sample. The first chunks have 1 and 2 samples;
their peaks are measured, and tell both parts, and so the size that fits. A chunk k times as large
takes at most k times as much, so that the next size is certain to fit if it is so many times
larger as the budget is larger than the peak. Beyond that, sizes at most double from one chunk to
the next: where memory grows unevenly, a chunk takes at most twice the budget, once. What the
measured chunks compute is used like any other's.
"""

import contextlib
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from torchlayers.core.device import free_memory
from torchlayers.core.peak_memory import PeakMemory
from torchlayers.taps import loop_steps

Result = TypeVar("Result")
ChunkSize: TypeAlias = int | Literal["auto"] | None

_DEFAULT_FRACTION = 0.5
_GROWTH = 8


def check_chunk_size(api: str, chunk_size: ChunkSize, memory_budget: int | None) -> None:
    """Raises TypeError or ValueError unless both are what `run` takes."""
    if chunk_size is not None and chunk_size != "auto":
        size: Any = chunk_size  # NumPy's integers will do
        is_int = isinstance(size, Integral) and not isinstance(chunk_size, bool)
        if not is_int or chunk_size <= 0:
            raise (ValueError if is_int else TypeError)(
                f"torchlayers: {api}: chunk_size must be None, 'auto' or an int greater than 0, "
                f"got {chunk_size!r}."
            )
    if memory_budget is not None and chunk_size != "auto":
        raise ValueError(
            f"torchlayers: {api}: memory_budget goes with chunk_size='auto', not with "
            f"chunk_size={chunk_size}."
        )
    if memory_budget is not None and memory_budget <= 0:
        raise ValueError(
            f"torchlayers: {api}: memory_budget is a number of bytes greater than 0, got "
            f"{memory_budget}."
        )


def budgets(
    api: str, chunk_size: ChunkSize, memory_budget: int | float | None
) -> tuple[int | float | None, int | None]:
    """A memory budget as the function's, or as that of a chunk where one is to be found."""
    if chunk_size != "auto":
        check_chunk_size(api, chunk_size, None)
        return memory_budget, None
    of_chunk: Any = memory_budget
    check_chunk_size(api, chunk_size, of_chunk)
    return None, of_chunk


def run(
    work: Callable[[int, int], Result],
    total: int,
    chunk_size: ChunkSize,
    memory_budget: int | None,
    device: torch.device,
    progress: bool,
    label: str,
    largest: Callable[[int], int] = int,
) -> list[Result]:
    """``[work(start, size), ...]`` for chunks that cover ``range(total)`` in order.

    Where ranks have to take the same chunks, `largest` is the largest of a number that all have.
    """
    results = []
    loop = loop_steps.loop(label, total)
    with _bar(progress, total, label) as advance, loop.under_way():

        def part(start: int, size: int) -> Result:
            loop.begin(start, size)
            return work(start, size)

        if chunk_size is None or total == 0:  # a total may be a symbol, which no range counts to
            results.append(part(0, total))
            advance(total)
        elif chunk_size == "auto":
            budget = default_budget(device) if memory_budget is None else memory_budget
            for size, result in _growing(part, total, -largest(-budget), largest):
                results.append(result)
                advance(size)
        else:
            for start in range(0, total, chunk_size):
                size = min(chunk_size, total - start)
                results.append(part(start, size))
                advance(size)
    return results


def default_budget(device: torch.device) -> int:
    """Half of the memory that is free on the device now, in bytes."""
    return int(free_memory(device) * _DEFAULT_FRACTION)


def _growing(
    work: Callable[[int, int], Result], total: int, budget: int, largest: Callable[[int], int]
) -> Iterator[tuple[int, Result]]:
    """The chunks' (size, result), with sizes that grow while measurements allow it."""
    start, size = 0, 1
    peaks: dict[int, int] = {}
    growing = True
    while start < total:
        size = min(size, total - start)
        if growing:
            with PeakMemory() as memory:
                result = work(start, size)
            peaks[size] = largest(memory.peak)
        else:
            result = work(start, size)
        start += size
        yield size, result
        del result
        if growing:
            size, growing = _next_size(peaks, budget)


def _next_size(peaks: dict[int, int], budget: int) -> tuple[int, bool]:
    """The next chunk's size, and whether it is larger than any so far, and so to be measured."""
    large, peak = max(peaks.items())
    if len(peaks) == 1:
        return (2, True) if peak <= budget else (1, False)
    small, small_peak = sorted(peaks.items())[-2]
    a_sample = max((peak - small_peak) / (large - small), 1.0)
    fixed = max(peak - a_sample * large, 0.0)
    fitting = max(1, int((budget - fixed) / a_sample))
    certain = large * budget // max(peak, 1)
    return min(fitting, max(certain, 2 * large), large * _GROWTH), fitting > large


@contextlib.contextmanager
def _bar(progress: bool, total: int, label: str) -> Iterator[Callable[[int], Any]]:
    if not progress:
        yield lambda size: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(
            "torchlayers: progress=True needs tqdm. Run `pip install torchlayers[progress]`."
        ) from None
    with tqdm(total=total, desc=label) as bar:
        yield bar.update


def joined(results: list[Result], join: Callable[[list[Any]], Any]) -> list[Any]:
    """Lists of leaves, a list a chunk, joined leaf by leaf; each is let go as it is joined."""
    if len(results) == 1:
        return list(results[0])  # type: ignore[call-overload, no-any-return]
    columns = [list(column) for column in zip(*results, strict=True)]
    results.clear()
    whole = []
    while columns:
        whole.append(join(columns.pop(0)))
    return whole
