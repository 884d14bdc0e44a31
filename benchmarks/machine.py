"""Describes the machine on which the figures were measured."""

import datetime
import os
import platform

import torch

from benchmarks import device


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
