"""Describes the machine on which the figures were measured."""

import datetime
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks import device


class Rates(NamedTuple):
    """The most that this machine does in a second, with torch's number of threads."""

    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.flops / 1e9:,.0f} GFLOP/s and {self.bytes / 1e9:,.1f} GB/s"


def rates(timer: Callable[[], float] = time.perf_counter) -> Rates:
    """Those of a large product, the faster one of torch's two libraries, and of a large copy."""
    size = 1024
    one, other = torch.rand(size, size), torch.rand(size, size)
    image = one.view(1, size, 32, 32)
    kernel = other.view(size, size, 1, 1)
    source, target = torch.rand(2, 1 << 24)
    products = (lambda: one @ other, lambda: F.conv2d(image, kernel))
    product = min(_seconds(each, timer) for each in products)
    copy = _seconds(lambda: target.copy_(source), timer)
    return Rates(2 * size**3 / product, 2 * source.nbytes / copy)


def _seconds(work: Callable[[], Any], timer: Callable[[], float]) -> float:
    """The least of some repetitions."""
    seconds = []
    for _ in range(20):
        start = timer()
        work()
        seconds.append(timer() - start)
    return min(seconds)


def describe() -> str:
    """Date, processor, cores and versions, in one line."""
    return (
        f"{datetime.date.today().isoformat()}; {_processor()}, {os.cpu_count()} cores; "
        f"{platform.system()}; Python {platform.python_version()}; torch {torch.__version__}"
        f"{device.describe()}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()
