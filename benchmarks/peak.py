"""The most memory that some work holds at once."""

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import device
from benchmarks.timing import Work


def peak_bytes(work: Work) -> int:
    """What torch's allocator gave out and had not got back, over what it had before.

    A GPU's counts itself; for the processor torch.profiler notes every allocation and every
    release, those inside kernels too. The figure is not one of the process: it does not depend on
    what else runs, nor on how the allocator keeps its memory.
    """
    work()  # what is made once and kept
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
    """The same of a GPU's memory, of work that has run before."""
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
    """Bytes, less than 0 where they are given back, in the order in which it happened."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(changes, key=lambda event: event["ts"])]
