"""What a function's results depend on besides its arguments, for calling it once more."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.device import RandomState, default_device_restored, with_autocast
from torchlayers.fx.recomputation import recording
from torchlayers.random.seeded import Draws

_torch: Any = torch  # what it keeps for its own use has no types


class Around(TorchFunctionMode):
    """A mode that shows a function other tensors than it would see without it."""

    is_covered: bool  # by one inside it, which asks it
    beyond: "Around | None" = None  # one around it, which it does not ask

    def sample(self, x: Tensor) -> Tensor:
        """The tensor as it is seen."""
        raise NotImplementedError

    def as_now(self) -> Callable[[], AbstractContextManager[Any]]:
        """What makes contexts, inside which functions see what they see now."""
        raise NotImplementedError


def innermost() -> Around | None:
    """The one that was entered last."""
    modes = reversed(_function_modes())
    return next((mode for mode in modes if isinstance(mode, Around)), None)


def seen(values: Any) -> Any:
    """The values as a function sees them here."""
    return seen_by(innermost(), values)


def seen_by(around: Around | None, values: Any) -> Any:
    """Likewise, inside this one, which was entered here."""
    while around is not None:
        values = pytree.map_tensors(around.sample, values)
        around = around.beyond
    return values


def as_seen_now() -> Callable[[], AbstractContextManager[Any]]:
    """What makes contexts, inside which functions see what they see now, whoever is around."""
    seen = [mode.as_now() for mode in _function_modes() if isinstance(mode, Around)]

    @contextmanager
    def again() -> Iterator[None]:
        with ExitStack() as stack:
            for each in seen:
                stack.enter_context(each())
            yield

    return again if seen else nullcontext


class Surroundings:
    """What a function sees, the random state, draws by keys, autocast and the default device."""

    def __init__(self) -> None:
        self.seen = as_seen_now()
        self.are_modes_asked = not _torch._C._is_torch_function_all_disabled()
        self.device = _C.default_device()
        self.random: RandomState | None = RandomState()
        self.draws: Draws | None = Draws()
        self.autocast = _autocast()
        self.recorded = recording()
        self.recorded_draws = self.recorded.here() if self.recorded is not None else 0

    def forget_unused(self) -> None:
        """When the function has run, and it shows whether it has drawn random numbers."""
        assert self.random is not None and self.draws is not None
        if not self.draws.are_over():
            self.draws = None
        if self.random.is_now():
            self.random = None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, all of that is as it was; afterwards as it is now."""
        with ExitStack() as stack:
            stack.enter_context(_hidden())
            if self.are_modes_asked:
                stack.enter_context(default_device_restored(self.device))
            stack.enter_context(self.seen())
            now = _autocast()
            if now != self.autocast:
                for device, (is_on, dtype, caches) in self.autocast.items():
                    if now.get(device) != (is_on, dtype, caches):
                        stack.enter_context(torch.autocast(device, dtype, is_on, caches))
            if self.draws is not None:
                stack.enter_context(self.draws.again())
            if self.random is not None:
                stack.enter_context(self.random.restored())
            if self.recorded is not None:
                stack.enter_context(self.recorded.again(self.recorded_draws))
            yield


@contextmanager
def _hidden() -> Iterator[None]:
    """Inside, functions see what they see outside all control flow."""
    arounds = [mode for mode in _function_modes() if isinstance(mode, Around)]
    if not arounds:
        yield
        return
    modes = _taken_off()
    covered = [around.is_covered for around in arounds]
    for around in arounds:
        around.is_covered = False
    _put_on(mode for mode in modes if not isinstance(mode, Around))
    try:
        yield
    finally:
        _taken_off()
        _put_on(modes)
        for around, is_covered in zip(arounds, covered, strict=True):
            around.is_covered = is_covered


def _taken_off() -> list[Any]:
    """All modes, which are no longer active, the outermost first."""
    count = _torch._C._len_torch_function_stack()
    return [_torch.overrides._pop_mode() for _ in range(count)][::-1]


def _put_on(modes: Iterable[Any]) -> None:
    for mode in modes:
        _torch.overrides._push_mode(mode)


def _autocast() -> dict[str, tuple[bool, torch.dtype, bool]]:
    caches = torch.is_autocast_cache_enabled()
    return {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), caches)
        for device in with_autocast()
    }


def _function_modes() -> list[Any]:
    """Those that are active, the outermost first."""
    if _torch._C._len_torch_function_stack() == 0:
        return []
    return _torch.overrides._get_current_function_mode_stack()  # type: ignore[no-any-return]
