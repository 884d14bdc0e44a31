"""A second device, for tests where there is no GPU: `second:0` and `second:1`.

Its memory is the processor's, but nobody can touch it, except kernels while they run. Its kernels
are the processor's. Its streams do everything at once, and note where on a GPU one would have read
what another had not written yet: a hazard. device.cpp and kernels.cpp tell more.
"""

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / "build" / f"second_device-{torch.__version__}"
NAME = "second"


def install() -> None:
    """Compiles it where it has changed, and makes it torch's accelerator for this process.

    Before the first backward pass: autograd's engine counts the devices once.
    """
    os.environ.setdefault("TORCH_NO_COMPILER_WRAPPER", "1")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _one_process_at_a_time():
        # torch's own lock is a file, which a process that was killed has left here.
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
    """The system ends this lock with its process, however that ends."""
    import fcntl  # which not every system has

    with open(FOLDER / "owner", "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        yield


def _module() -> types.ModuleType:
    """What torch looks for at `torch.second`. Random numbers are drawn from the processor's."""
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
    """What would have gone wrong since this was asked last."""
    return torch.ops.second.hazards()


def launches() -> list[str]:
    """The kernels since this was asked last: "aten::mul.Tensor on 3", a stream."""
    return torch.ops.second.launches()


def waits() -> list[str]:
    """What made the host wait since this was asked last."""
    return torch.ops.second.waits()


@contextmanager
def no_synchronizing() -> Iterator[None]:
    """Whatever makes the host wait raises a RuntimeError."""
    torch.ops.second.forbid_synchronizing(True)
    try:
        yield
    finally:
        torch.ops.second.forbid_synchronizing(False)
