"""All that Python asks of devices: which they are, their memory, their random generators.

What C++ asks is in csrc/core/device.h.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C

_torch: Any = torch  # what it keeps for its own use has no types

HOST = torch.device("cpu")  # where Python and C++ look at numbers
SHAPES_ONLY = torch.device("meta")  # where there are none


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == HOST.type


def has_numbers(tensor: Tensor) -> bool:
    return tensor.device.type != SHAPES_ONLY.type


def with_autocast() -> tuple[str, ...]:
    """The kinds of devices that autocast may be on for: the processor, and the accelerator."""
    there = torch.accelerator.current_accelerator(check_available=True)
    return (HOST.type,) if there is None else (HOST.type, there.type)


@contextmanager
def default_device_restored(device: torch.device | None) -> Iterator[None]:
    """Inside, tensors are made where they were when _C.default_device() was this one.

    A reverse pass may run where no mode is asked, or on a thread that has none.
    """
    is_off = _torch._C._is_torch_function_all_disabled()
    with (
        _torch._C._EnableTorchFunction() if is_off else nullcontext(),
        nullcontext() if _C.default_device() == device else device or HOST,
    ):
        yield


def free_memory(device: torch.device) -> int:
    """The bytes that are free on the device now, with those that torch keeps for what comes next.

    Raises:
        RuntimeError: the system doesn't tell.
    """
    of_device: Any = getattr(torch, device.type, None)  # torch.cuda
    if hasattr(of_device, "mem_get_info"):
        reserved = torch.accelerator.memory_reserved(device)
        kept = reserved - torch.accelerator.memory_allocated(device)
        return int(of_device.mem_get_info(device)[0]) + kept
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
    """The state of the random generators of all devices, as it is when this is made.

    Of an accelerator that nobody has used yet there is none: it begins with its generators' seeds.
    Of generators that are not torch's own it is that of those which are ``given``.
    """

    def __init__(self, given: Sequence[torch.Generator] = ()) -> None:
        self._given = _with_states(given) if given else []
        self._host = _C.RandomState()
        self._accelerators = _states_of_accelerators()

    def restore(self) -> None:
        """From here on what was drawn since is drawn again."""
        self._host.restore()
        if self._given:
            with _past_all():
                for generator, state in self._given:
                    generator.set_state(state)
        module = _accelerator_in_use()
        with _past_all() if module is not None else nullcontext():
            for i, state in enumerate(self._accelerators):
                module.set_rng_state(state, i)
            if not self._accelerators:
                for generator in getattr(module, "default_generators", ()):
                    generator.manual_seed(generator.initial_seed())

    def is_now(self) -> bool:
        """Whether as many numbers were drawn as when this was made."""
        if not self._host.is_now():
            return False
        then = [*self._accelerators, *(state for _, state in self._given)]
        now = _states_of_accelerators()
        now += [state for _, state in _with_states(generator for generator, _ in self._given)]
        with _past_all() if now else nullcontext():
            return len(now) == len(then) and all(map(torch.equal, now, then))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The same inside the block; after it the generators go on as before it."""
        now = RandomState([generator for generator, _ in self._given])
        self.restore()
        try:
            yield
        finally:
            now.restore()


def _accelerator_in_use() -> Any:
    """Its module, such as torch.cuda; None if it has none, or nobody has used it."""
    there = torch.accelerator.current_accelerator()
    module: Any = None if there is None else torch.get_device_module(there)
    return module if hasattr(module, "is_initialized") and module.is_initialized() else None


def _states_of_accelerators() -> list[Tensor]:
    module = _accelerator_in_use()
    if module is None:
        return []
    with _past_all():
        return [module.get_rng_state(i) for i in range(module.device_count())]


def _with_states(generators: Iterable[torch.Generator]) -> list[tuple[torch.Generator, Tensor]]:
    with _past_all():
        return [(generator, generator.get_state()) for generator in generators]


@contextmanager
def _past_all() -> Iterator[None]:
    """Past layers and modes, which would take a state for a tensor of the program's."""
    none: Any = torch._C
    with none._DisableFuncTorch(), none._DisableTorchDispatch(), none.DisableTorchFunction():
        yield
