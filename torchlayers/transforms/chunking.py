"""Running a batch in chunks: chunk_size, memory_budget and progress, for all transforms.

NOTE [Finding the chunk size]
``chunk_size="auto"`` takes the largest chunk that stays within the memory budget. Peak memory is a
fixed part plus a part per sample. The first chunks have 1 and 2 samples; their measured peaks
determine both parts, and thus the size that fits. A chunk k times as large takes at most k times
the memory, so growing the size by the ratio of budget to peak always fits. Beyond that, the size
at most doubles from one chunk to the next, so if memory grows unevenly, a chunk exceeds the budget
at most once, by a factor of at most two. Results of the measured chunks are used like any others.
"""

import contextlib
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from torchlayers.core.device import free_memory
from torchlayers.core.tensors.peak_memory import PeakMemory
from torchlayers.taps import loop_steps

Result = TypeVar("Result")
ChunkSize: TypeAlias = int | Literal["auto"] | None

_DEFAULT_FRACTION = 0.5
_GROWTH = 8


def check_chunk_size(api: str, chunk_size: ChunkSize, memory_budget: int | None) -> None:
    """Raises TypeError or ValueError unless both are valid arguments of `run`."""
    if chunk_size is not None and chunk_size != "auto":
        size: Any = chunk_size  # NumPy integers are accepted
        is_int = isinstance(size, Integral) and not isinstance(chunk_size, bool)
        if not is_int or chunk_size <= 0:
            raise (ValueError if is_int else TypeError)(
                f"torchlayers: {api}: chunk_size must be None, 'auto' or an int greater than 0, "
                f"got {chunk_size!r}."
            )
    if memory_budget is not None and chunk_size != "auto":
        raise ValueError(
            f"torchlayers: {api}: memory_budget requires chunk_size='auto', got "
            f"chunk_size={chunk_size}."
        )
    if memory_budget is not None and memory_budget <= 0:
        raise ValueError(
            f"torchlayers: {api}: memory_budget must be a number of bytes greater than 0, got "
            f"{memory_budget}."
        )


def split_budget(
    api: str, chunk_size: ChunkSize, memory_budget: int | float | None
) -> tuple[int | float | None, int | None]:
    """Returns (budget of the function, budget of a chunk): the latter with chunk_size="auto"."""
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
    """Returns ``[work(start, size), ...]`` for chunks that cover ``range(total)`` in order.

    If all ranks must use the same chunks, `largest` returns the maximum of a number over the ranks.
    """
    results = []
    loop = loop_steps.begin_loop(label, total)
    with _bar(progress, total, label) as advance, loop.running():

        def part(start: int, size: int) -> Result:
            loop.begin(start, size)
            return work(start, size)

        if chunk_size is None or total == 0:  # total may be a symbolic size, which range rejects
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
    """Returns half of the memory that is currently free on the device, in bytes."""
    return int(free_memory(device) * _DEFAULT_FRACTION)


def _growing(
    work: Callable[[int, int], Result], total: int, budget: int, largest: Callable[[int], int]
) -> Iterator[tuple[int, Result]]:
    """Yields (size, result) for each chunk, with sizes that grow while the budget allows it."""
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
    """Returns the next chunk's size, and whether it may exceed all so far and must be measured."""
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
            "torchlayers: progress=True needs tqdm. Run `pip install tqdm`."
        ) from None
    with tqdm(total=total, desc=label) as bar:
        yield bar.update


def join_leaves(results: list[Result], join: Callable[[list[Any]], Any]) -> list[Any]:
    """Joins the chunks' lists of leaves leaf by leaf, and frees each leaf once it is joined."""
    if len(results) == 1:
        return list(results[0])  # type: ignore[call-overload, no-any-return]
    columns = [list(column) for column in zip(*results, strict=True)]
    results.clear()
    whole = []
    while columns:
        whole.append(join(columns.pop(0)))
    return whole
