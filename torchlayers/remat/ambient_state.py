"""Ambient state: RNG, autocast, default device and control-flow views, saved at a call so that the
function can be recomputed under the same conditions."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.device import RandomState, autocast_device_types, default_device_restored
from torchlayers.core.private_names import private
from torchlayers.core.torch_private import torch_c
from torchlayers.fx.recomputation import current_recomputations
from torchlayers.random.seeded import DrawCounters

overrides = private("torch.overrides")


class TensorViewMode(TorchFunctionMode):
    """A control-flow mode that changes how a function sees tensors, for example only some of a
    batched tensor's samples."""

    is_covered: bool  # whether a mode inside this one applies it already
    beyond: "TensorViewMode | None" = None  # an enclosing mode that this one does not apply

    def sample(self, x: Tensor) -> Tensor:
        """Returns the tensor as the function sees it."""
        raise NotImplementedError

    def as_now(self) -> Callable[[], AbstractContextManager[Any]]:
        """Returns a factory of context managers that restore the current view of tensors."""
        raise NotImplementedError


def innermost_view_mode() -> TensorViewMode | None:
    """Returns the TensorViewMode that was entered last, or None."""
    if not _C.any_function_mode():  # nearly always
        return None
    modes = reversed(_function_modes())
    return next((mode for mode in modes if isinstance(mode, TensorViewMode)), None)


def apply_view_modes(values: Any) -> Any:
    """Returns the values as a function that runs now sees them."""
    return apply_view_mode(innermost_view_mode(), values)


def apply_view_mode(around: TensorViewMode | None, values: Any) -> Any:
    """Returns the values as seen inside `around` and the modes beyond it."""
    while around is not None:
        values = pytree.map_tensors(around.sample, values)
        around = around.beyond
    return values


def capture_view_modes() -> Callable[[], AbstractContextManager[Any]]:
    """Returns a factory of context managers that restore the view given by all active Arounds."""
    seen = [mode.as_now() for mode in _function_modes() if isinstance(mode, TensorViewMode)]

    @contextmanager
    def again() -> Iterator[None]:
        with ExitStack() as stack:
            for enter in seen:
                stack.enter_context(enter())
            yield

    return again if seen else nullcontext


class AmbientState:
    """The state saved at a call: the view of tensors, the RNG state, keyed draws, autocast and the
    default device."""

    def __init__(self) -> None:
        self.seen = capture_view_modes()
        self.are_modes_asked = not torch_c._is_torch_function_all_disabled()
        self.device = _C.default_device()
        self.random: RandomState | None = RandomState()
        self.draws: DrawCounters | None = DrawCounters()
        self.autocast = AutocastState()
        self.recorded = current_recomputations()
        self.recorded_draws = self.recorded.position() if self.recorded is not None else 0

    def forget_unused(self) -> None:
        """Drops unused random state. Called after the function has run, when that is known."""
        assert self.random is not None and self.draws is not None
        if not self.draws.have_advanced():
            self.draws = None
        if self.random.is_now():
            self.random = None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the saved state inside the block, and the current state afterwards."""
        with ExitStack() as stack:
            stack.enter_context(_without_view_modes())
            if self.are_modes_asked:
                stack.enter_context(default_device_restored(self.device))
            stack.enter_context(self.seen())
            stack.enter_context(self.autocast.restored())
            if self.draws is not None:
                stack.enter_context(self.draws.replayed())
            if self.random is not None:
                stack.enter_context(self.random.restored())
            if self.recorded is not None:
                stack.enter_context(self.recorded.replaying(self.recorded_draws))
            yield


class AutocastState:
    """Autocast's settings, saved when this is created."""

    def __init__(self) -> None:
        self._saved = _autocast()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the saved settings inside the block, and the current ones afterwards."""
        now = _autocast()
        with ExitStack() as stack:
            if now != self._saved:
                for device, (is_on, dtype, caches) in self._saved.items():
                    if now.get(device) != (is_on, dtype, caches):
                        stack.enter_context(torch.autocast(device, dtype, is_on, caches))
            yield


@contextmanager
def _without_view_modes() -> Iterator[None]:
    """Disables all Arounds inside the block: functions see tensors as outside control flow."""
    arounds = [mode for mode in _function_modes() if isinstance(mode, TensorViewMode)]
    if not arounds:
        yield
        return
    modes = _disable_function_modes()
    covered = [around.is_covered for around in arounds]
    for around in arounds:
        around.is_covered = False
    _enable_function_modes(mode for mode in modes if not isinstance(mode, TensorViewMode))
    try:
        yield
    finally:
        _disable_function_modes()
        _enable_function_modes(modes)
        for around, is_covered in zip(arounds, covered, strict=True):
            around.is_covered = is_covered


def _disable_function_modes() -> list[Any]:
    """Pops all function modes, and returns them with the outermost first."""
    modes = _function_modes()
    for mode in reversed(modes):
        TorchFunctionMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
    return modes


def _enable_function_modes(modes: Iterable[Any]) -> None:
    for mode in modes:
        TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]


def _autocast() -> dict[str, tuple[bool, torch.dtype, bool]]:
    caches = torch.is_autocast_cache_enabled()
    return {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), caches)
        for device in autocast_device_types()
    }


def _function_modes() -> list[Any]:
    """Returns the active function modes, the outermost first."""
    stack: list[Any] = overrides._get_current_function_mode_stack()
    return stack
