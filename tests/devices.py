"""The device that the tests make their tensors on, as `--device` says: torch's default device.

Most tests say nothing of devices and could be run on any; those of FILES are. A test marked
`accelerator` is about streams, memory or waiting, and skips on the processor.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.peak import peak_of_accelerator
from tests import second_device

NAMES = ["cpu", "cuda", second_device.NAME]
HERE = Path(__file__).parent
ABOUT_DEVICES = {"test_devices.py", "test_streams.py"}
# Run on any device. The others look into memory, compare with what other packages compute on the
# processor, start processes, or compile for it.
FILES = ABOUT_DEVICES | {
    "reverse_mode/test_pass.py",
    "test_grad.py",
    "test_jacobian.py",
    "test_jvp.py",
    "test_launches.py",
    "test_linearize.py",
    "test_vjp.py",
    "test_vmap.py",
    "test_waiting.py",
}

_name = "cpu"


def use(name: str) -> None:
    """Before tests are imported, which make tensors as they are."""
    global _name
    _name = name
    if name == second_device.NAME:
        second_device.install()
    if name != "cpu" and is_there():
        torch.set_default_device(name)


def is_there() -> bool:
    return _name != "cuda" or torch.cuda.is_available()


def used() -> torch.device:
    return torch.empty(0).device


def is_left_out(path: Path) -> bool:
    """Whether it is a file of tests that are not run on this device."""
    is_test = path.name.startswith("test_") and path.is_file()
    return _name != "cpu" and is_test and _name_of(path) not in FILES


def who_are_left_out() -> str | None:
    if _name == "cpu":
        return None
    return f"device {_name}: {len(FILES)} files of tests, the others are written for the processor"


def _name_of(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


def skip_what_does_not_apply(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))


def is_for_the_second(item: pytest.Item) -> bool:
    """And not for this one: test_second_device runs it."""
    only = item.get_closest_marker("only_on")
    return only is not None and only.args[0] == second_device.NAME != _name


def _reason_to_skip(item: pytest.Item) -> str | None:
    if not is_there():
        return f"no {_name} on this machine"
    only = item.get_closest_marker("only_on")
    if only and only.args[0] != _name:
        return f"needs --device {only.args[0]}"
    if _name == "cpu":
        return "needs --device cuda" if item.get_closest_marker("accelerator") else None
    return None if _name_of(item.path) in FILES else "written for the processor"


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """Whatever makes the processor wait for the device raises a RuntimeError."""
    if _name == second_device.NAME:
        with second_device.no_synchronizing():
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def no_hazards() -> Iterator[None]:
    """No stream reads what another may not have written yet, nor has memory that one still uses.

    The second device tells. On a GPU a wrong number would, or would not.
    """
    if _name != second_device.NAME:
        yield
        return
    second_device.hazards()
    yield
    assert second_device.hazards() == []


def peak_bytes(work) -> int:
    """The most that the work holds at once, of the device's memory, over what there was before."""
    work()
    return peak_of_accelerator(work)
