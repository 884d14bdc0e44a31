"""A second device, for tests without a GPU: `second:0` and `second:1`.

Its memory is host memory that is inaccessible except while its kernels run. Its kernels are the
CPU's. Its streams run everything immediately, and record a hazard where on a GPU one stream would
have read what another had not yet written. device.cpp and kernels.cpp explain more.
"""

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / "build" / f"second_device-{torch.__version__}"
NAME = "second"


def install() -> None:
    """Compiles it if it has changed, and makes it torch's accelerator for this process.

    Call it before the first backward pass: autograd's engine counts the devices once.
    """
    os.environ.setdefault("TORCH_NO_COMPILER_WRAPPER", "1")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _one_process_at_a_time():
        # torch's own lock is a file, which a killed process may have left here.
        (FOLDER / "lock").unlink(missing_ok=True)
        cpp_extension.load(
            "torchlayers_second_device",
            [str(HERE / "device.cpp"), str(HERE / "kernels.cpp")],
            extra_cflags=["-O1"],
            build_directory=str(FOLDER),
            is_python_module=False,
        )
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend()


@contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """A lock that the system releases when its process ends, however it ends."""
    import fcntl  # not available on every system

    with open(FOLDER / "owner", "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        yield


def _module() -> types.ModuleType:
    """The module that torch looks up at `torch.second`. Random numbers come from the CPU's
    generator."""
    module = types.ModuleType(f"torch.{NAME}")
    found = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "mem_get_info": torch.accelerator.get_memory_info,
        "current_device": torch._C._accelerator_getDeviceIndex,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=NAME: torch.get_rng_state(),
        "set_rng_state": lambda state, device=NAME: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, value in found.items():
        setattr(module, name, value)
    return module


def hazards() -> list[str]:
    """The hazards since the last call."""
    return torch.ops.second.hazards()


def launches() -> list[str]:
    """The kernels launched since the last call: "aten::mul.Tensor on 3", where 3 is a stream."""
    return torch.ops.second.launches()


def waits() -> list[str]:
    """What made the host wait since the last call."""
    return torch.ops.second.waits()


@contextmanager
def no_synchronizing() -> Iterator[None]:
    """Raises a RuntimeError for anything that makes the host wait."""
    torch.ops.second.forbid_synchronizing(True)
    try:
        yield
    finally:
        torch.ops.second.forbid_synchronizing(False)
