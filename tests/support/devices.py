"""The device on which the tests make their tensors, given by `--device`: torch's default device.

Most tests do not mention devices and could run on any; those in ANYWHERE do. A test marked
`accelerator` is about streams, memory or waiting, and is skipped on the CPU.
"""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.peak import peak_of_accelerator
from tests.device import second_device

NAMES = ["cpu", "cuda", second_device.NAME]
HERE = Path(__file__).parent.parent
# Files and folders that run on any device. The others inspect memory, compare with other packages
# on the CPU, start processes or compile for it, or have not been tried elsewhere.
ANYWHERE = {
    "autograd_function",
    "control_flow",
    "core/test_calls.py",
    "core/test_modes.py",
    "core/test_nesting.py",
    "core/test_streams.py",
    "device/test_devices.py",
    "device/test_kernel_launches.py",
    "device/test_synchronizations.py",
    "modules/test_ensemble.py",
    "modules/test_functional.py",
    "modules/test_functional_call.py",
    "modules/test_module.py",
    "modules/test_module_calls.py",
    "modules/test_module_hooks.py",
    "modules/test_module_kinds.py",
    "rules/reverse/test_pass.py",
    "transforms/test_chunks.py",
    "transforms/test_grad.py",
    "transforms/test_jacobian.py",
    "transforms/test_jvp.py",
    "transforms/test_linearize.py",
    "transforms/test_vjp.py",
    "transforms/test_vmap.py",
    "in_place_under_vmap",
}
# Tests in these files that run only on the CPU.
_OF_A_THREAD = "a new thread has no default device"
_ITS_AUTOCAST = "the processor's autocast"
ON_THE_PROCESSOR = {
    "autograd_function/test_call.py::test_a_rule_for_a_dispatch_key_runs_below_the_layers": (
        "the rules are for the processor's keys"
    ),
    "autograd_function/test_modes.py::test_autocast_reaches_the_forward": _ITS_AUTOCAST,
    "modules/test_functional_call.py::test_module_only_read_by_two_threads_is_shared": _OF_A_THREAD,
    "modules/test_module_kinds.py::test_each_thread_has_a_module_of_its_own": _OF_A_THREAD,
    "modules/test_module_kinds.py::test_quantised_parts_stay_as_they_are": (
        "quantised for the processor"
    ),
    "in_place_under_vmap/test_lists.py::test_operator[aten::_foreach_addc": (
        "torch takes their numbers from the processor, and a batch of these can't meet the device's"
    ),
    "in_place_under_vmap/test_behaviour.py::test_new_tensor_prints_as_batched": (
        "devices are printed"
    ),
    "in_place_under_vmap/test_behaviour.py::test_escaped_tensor_is_never_read_as_unwritten": (
        "numpy reads the processor's memory alone"
    ),
    "in_place_under_vmap/test_subscripts.py::test_each_thread_writes_its_own": _OF_A_THREAD,
}
# Tests of features that torch does not support on a device it does not know.
_UNPICKLED = "torch does not pickle its tensors"
_FUSED = "torch has a fused cell for such devices, which the processor's kernels lack"
_AUTOCAST = "its autocast knows two operators"
_REPLAYED_THERE = "inductor does not know it"
NOT_ON_THE_SECOND = {
    "control_flow/test_rolled.py::test_inductor_runs_the_steps_in_a_program": _REPLAYED_THERE,
    "control_flow/test_rolled.py::test_inductors_own_function_runs_the_steps_too": _REPLAYED_THERE,
    "modules/test_functional_call.py::test_recurrent_networks": _FUSED,
    "core/test_modes.py::test_autocast_gives_the_dtypes_of_plain_code[jvp-Linear, LayerNorm": (
        _AUTOCAST
    ),
    "core/test_modes.py::test_rules_are_followed_under_autocast": _AUTOCAST,
    "modules/test_module_kinds.py::test_copies_made_in_the_call_keep_the_given_tensors[pickled": (
        _UNPICKLED
    ),
    "modules/test_module_kinds.py::test_copies_of_a_module_that_was_called[pickled": _UNPICKLED,
    "modules/test_module_kinds.py::test_gradients_a_sample_of_recurrent_cells": _FUSED,
}
# Inductor does not know this device either: compiled code is replayed, and compile warns.
_REPLAYED = pytest.mark.filterwarnings("ignore:torchlayers. compile. Inductor did not compile")

_name = "cpu"


def use(name: str) -> None:
    """Sets the default device. Call it before importing tests, which create tensors at import."""
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
    """Whether the path is a file of tests that do not run on this device."""
    is_test = path.name.startswith("test_") and path.is_file()
    return _name != "cpu" and is_test and not _is_in(path.relative_to(HERE).as_posix(), ANYWHERE)


def who_are_left_out() -> str | None:
    if _name == "cpu":
        return None
    return (
        f"device {_name}: {len(ANYWHERE)} files and folders of tests, the others are written for "
        "the processor"
    )


def skip_what_does_not_apply(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif _name == second_device.NAME:
            item.add_marker(_REPLAYED)


def is_for_the_second(item: pytest.Item) -> bool:
    """Whether the test is only for the second device, where test_second_device runs it."""
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
    name = item.nodeid.removeprefix("tests/")
    if not _is_in(name, ANYWHERE):
        return "written for the processor"
    unsuited = ON_THE_PROCESSOR | (NOT_ON_THE_SECOND if _name == second_device.NAME else {})
    return next((reason for test, reason in unsuited.items() if name.startswith(test)), None)


def _is_in(name: str, files: set[str]) -> bool:
    """Whether a test, or a file of tests, is one of the files or in one of the folders."""
    return any(name.startswith(file) for file in files)


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """Raises a RuntimeError for anything that makes the CPU wait for the device."""
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
    """Asserts that no stream reads what another may still be writing or reuses memory that is in
    use.

    Only the second device reports such hazards; on a GPU they may or may not give a wrong number.
    """
    if _name != second_device.NAME:
        yield
        return
    second_device.hazards()
    yield
    assert second_device.hazards() == []


def peak_bytes(work) -> int:
    """The peak of device memory that the work allocates at once, above what was allocated
    before."""
    work()
    gc.collect()  # garbage of earlier tests, which could be freed during the work
    return peak_of_accelerator(work)
