"""Device queries: which devices there are, their memory and their random number generators.

Those in C++ are in csrc/core/device.h.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.torch_private import dispatch_keys, key_set, torch_c

CPU = torch.device("cpu")  # where Python and C++ can read values
META = torch.device("meta")  # tensors without values


class DeviceRates(NamedTuple):
    """Operations and bytes a second, roughly: for estimates by which alternatives are compared."""

    flops: float
    bytes: float


_CPU_RATES = DeviceRates(6e10, 1.8e10)  # one thread of an AMD EPYC
_ACCELERATOR_RATES = DeviceRates(2e13, 1e12)


def device_rates(device: torch.device) -> DeviceRates:
    """Returns the rates of a kind of device; no particular one is measured."""
    return _CPU_RATES if device.type in (CPU.type, META.type) else _ACCELERATOR_RATES


_OF_MODES = key_set("Python", "PythonTLSSnapshot", "PreDispatch")


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == CPU.type


def has_data(tensor: Tensor) -> bool:
    return tensor.device.type != META.type


def autocast_device_types() -> tuple[str, ...]:
    """Returns the device types for which autocast may be enabled: CPU and the accelerator."""
    there = torch.accelerator.current_accelerator(check_available=True)
    return (CPU.type,) if there is None else (CPU.type, there.type)


@contextmanager
def default_device_restored(device: torch.device | None) -> Iterator[None]:
    """Context manager: restores the default device that _C.default_device() returned earlier.

    A backward pass may run with function modes disabled, or on a thread without the mode.
    """
    is_off = torch_c._is_torch_function_all_disabled()
    with (
        torch_c._EnableTorchFunction() if is_off else nullcontext(),
        nullcontext() if _C.default_device() == device else device or CPU,
    ):
        yield


def free_memory(device: torch.device) -> int:
    """Returns the free memory of the device in bytes, including torch's cached free blocks.

    Raises:
        RuntimeError: the system does not report it.
    """
    of_device: Any = getattr(torch, device.type, None)  # torch.cuda
    if hasattr(of_device, "mem_get_info"):
        reserved = torch.accelerator.memory_reserved(device)
        cached = reserved - torch.accelerator.memory_allocated(device)
        return int(of_device.mem_get_info(device)[0]) + cached
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise RuntimeError(
        "torchlayers: this system does not report how much memory is free. Pass memory_budget, in "
        "bytes, with chunk_size='auto'."
    )


class RandomState:
    """The state of the random generators of all devices, captured when it is constructed.

    An accelerator that is not initialized has no state yet: it starts from its generators' seeds.
    Of generators that are not torch's defaults, only these ``generators`` are included.
    """

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = _with_states(generators) if generators else []
        self._host = _C.RandomState()
        self._accelerators = _states_of_accelerators()

    def restore(self) -> None:
        """Resets the generators, so that the numbers drawn since are drawn again."""
        self._host.restore()
        if self._generators:
            with _disable_layers_and_modes():
                for generator, state in self._generators:
                    generator.set_state(state)
        module = _accelerator_in_use()
        with _disable_layers_and_modes() if module is not None else nullcontext():
            for i, state in enumerate(self._accelerators):
                module.set_rng_state(state, i)
            if not self._accelerators:
                for generator in getattr(module, "default_generators", ()):
                    generator.manual_seed(generator.initial_seed())

    def is_now(self) -> bool:
        """Whether the generators are in this state now."""
        if not self._host.is_now():
            return False
        then = [*self._accelerators, *(state for _, state in self._generators)]
        now = _states_of_accelerators()
        now += [state for _, state in _with_states(generator for generator, _ in self._generators)]
        with _disable_layers_and_modes() if now else nullcontext():
            return len(now) == len(then) and all(map(torch.equal, now, then))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the state inside the block, and afterwards the state from before the block."""
        now = RandomState([generator for generator, _ in self._generators])
        self.restore()
        try:
            yield
        finally:
            now.restore()


def _accelerator_in_use() -> Any:
    """Returns the accelerator's module, such as torch.cuda; None if it is not initialized."""
    there = torch.accelerator.current_accelerator()
    module: Any = None if there is None else torch.get_device_module(there)
    return module if hasattr(module, "is_initialized") and module.is_initialized() else None


def _states_of_accelerators() -> list[Tensor]:
    module = _accelerator_in_use()
    if module is None:
        return []
    with _disable_layers_and_modes():
        return [module.get_rng_state(i) for i in range(module.device_count())]


def _with_states(generators: Iterable[torch.Generator]) -> list[tuple[torch.Generator, Tensor]]:
    with _disable_layers_and_modes():
        return [(generator, generator.get_state()) for generator in generators]


@contextmanager
def _disable_layers_and_modes() -> Iterator[None]:
    """Disables layers and modes, which would treat a state as a tensor of the program."""
    with (
        torch_c._DisableFuncTorch(),
        dispatch_keys(without=_OF_MODES),
        torch.DisableTorchFunction(),
    ):
        yield
