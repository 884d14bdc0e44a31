"""The peak memory of some work."""

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import device
from benchmarks.timing import Work


def peak_bytes(work: Work) -> int:
    """The most that torch's allocator had allocated and not freed, above what it had before.

    A GPU's allocator counts it; for the CPU torch.profiler records every allocation and free, also
    inside kernels. The figure is not the process's: it does not depend on what else runs, nor on
    how the allocator manages its memory.
    """
    work()  # allocates what is created once and stays
    if not device.is_processor():
        return _of_device(work)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    held = peak = 0
    for change in _changes(profiler):
        held += change
        peak = max(peak, held)
    return peak


def peak_of_accelerator(work: Work) -> int:
    """The same for a GPU's memory, of work that has run before."""
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    work()
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated() - before


def _of_device(work: Work) -> int:
    with device.timed():
        return peak_of_accelerator(work)


def _changes(profiler: profile) -> list[int]:
    """Bytes allocated, negative where they are freed, in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(changes, key=lambda event: event["ts"])]
