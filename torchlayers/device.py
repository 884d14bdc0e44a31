"""All that Python asks of a device: the memory that is free there, and its random generators.

What C++ asks is in csrc/core/device.h.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from torchlayers import _C


def free_memory(device: torch.device) -> int:
    """The bytes that are free on the device now.

    Raises:
        RuntimeError: the system doesn't tell.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise RuntimeError(
        "torchlayers: this system doesn't tell how much memory is free. Give memory_budget, in "
        "bytes, with chunk_size='auto'."
    )


class RandomState:
    """The state of the random generators of all devices, as it is when this is made."""

    def __init__(self) -> None:
        self._host = _C.RandomState()
        self._cuda = _states_of_gpus()

    def restore(self) -> None:
        """From here on what was drawn since is drawn again."""
        self._host.restore()
        if self._cuda:
            with _past_all():
                torch.cuda.set_rng_state_all(self._cuda)

    def is_now(self) -> bool:
        """Whether as many numbers were drawn as when this was made."""
        if not self._host.is_now():
            return False
        now = _states_of_gpus()
        with _past_all() if now else nullcontext():
            return len(now) == len(self._cuda) and all(map(torch.equal, now, self._cuda))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The same inside the block; after it the generators go on as before it."""
        now = RandomState()
        self.restore()
        try:
            yield
        finally:
            now.restore()


def _states_of_gpus() -> list[torch.Tensor]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    with _past_all():
        return torch.cuda.get_rng_state_all()


@contextmanager
def _past_all() -> Iterator[None]:
    """Past layers and modes, which would take a state for a tensor of the program's."""
    none: Any = torch._C
    with none._DisableFuncTorch(), none._DisableTorchDispatch(), none.DisableTorchFunction():
        yield
