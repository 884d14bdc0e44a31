"""All that Python asks of a device: the memory that is free there, and its random generators.

What C++ asks is in csrc/core/device.h.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
        self._host = torch.get_rng_state()
        initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.get_rng_state_all() if initialized else []

    def restore(self) -> None:
        """From here on what was drawn since is drawn again."""
        torch.set_rng_state(self._host)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def is_now(self) -> bool:
        """Whether as many numbers were drawn as when this was made."""
        now = RandomState()
        pairs = zip([self._host, *self._cuda], [now._host, *now._cuda], strict=True)
        return all(torch.equal(one, other) for one, other in pairs)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The same inside the block; after it the generators go on as before it."""
        with torch.random.fork_rng(range(len(self._cuda))):
            self.restore()
            yield
