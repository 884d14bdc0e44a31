"""The device on which the benchmarks compute, as ``--device`` says: the CPU, or a GPU.

Tensors are created on the CPU, by its generators, and then moved, so that the numbers are the same
everywhere. A device works asynchronously, so a block of calls is timed until its work has ended.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._device import _device_constructors

_device = torch.device("cpu")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="cpu",
        help="where to compute: cpu, cuda, or second (tests/device/second_device)",
    )


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Inside, tensors are created on the device.

    Raises:
        SystemExit: there is no such device.
    """
    global _device
    if name == "cpu":
        yield
        return
    if name == "second":
        from tests.device import second_device

        second_device.install()
    there = torch.accelerator.current_accelerator(check_available=True)
    if there is None or there.type != name:
        raise SystemExit(f"There is no {name} on this machine.")
    _device = torch.device(name, 0)
    try:
        with _Placed():
            yield
    finally:
        _device = torch.device("cpu")


def used() -> torch.device:
    return _device


def is_processor() -> bool:
    return _device.type == "cpu"


class _Placed(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.to(_device) if func in _device_constructors() else made


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Switches off the mode that places tensors, which would run with every operator."""
    if is_processor():
        yield
        return
    with _pop_mode_temporarily():
        yield


def seconds(work: Callable[[], Any]) -> float:
    """Time of the work, with the device idle at the start and at the end."""
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    work()
    torch.accelerator.synchronize()
    return time.perf_counter() - begin


def describe() -> str:
    """The device, for the line about the machine."""
    if is_processor():
        return ""
    if _device.type != "cuda":
        return f"; the device {_device.type}"
    memory = torch.cuda.get_device_properties(_device).total_memory / 2**30
    name = torch.cuda.get_device_name(_device)
    return f"; {name}, {memory:.0f} GiB, CUDA {torch.version.cuda}"


if __name__ == "__main__":  # checks that the device exists
    with use(sys.argv[1]):
        print(f"Computing on {_device}{describe()}.")
