"""Where the benchmarks compute, as ``--device`` says: the processor, or a GPU.

Their tensors are made on the processor, by its generators, and placed there: everywhere the same
numbers. A device works off what it was given after the processor has gone on, so a block of calls
is timed to the end of its work.
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
        help="where to compute: cpu, cuda, or second (tests/second_device)",
    )


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Inside, tensors are made there.

    Raises:
        SystemExit: there is no such device.
    """
    global _device
    if name == "cpu":
        yield
        return
    if name == "second":
        from tests import second_device

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
    """What places tensors would be called with every operator: not inside."""
    if is_processor():
        yield
        return
    with _pop_mode_temporarily():
        yield


def seconds(work: Callable[[], Any]) -> float:
    """From when the device has nothing to do to when it has nothing to do any more."""
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    work()
    torch.accelerator.synchronize()
    return time.perf_counter() - begin


def describe() -> str:
    """The device, for the line that names the machine."""
    if is_processor():
        return ""
    if _device.type != "cuda":
        return f"; the device {_device.type}"
    memory = torch.cuda.get_device_properties(_device).total_memory / 2**30
    name = torch.cuda.get_device_name(_device)
    return f"; {name}, {memory:.0f} GiB, CUDA {torch.version.cuda}"


if __name__ == "__main__":  # whether it is there
    with use(sys.argv[1]):
        print(f"Computing on {_device}{describe()}.")
