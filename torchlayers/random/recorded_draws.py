"""Records or replays the random draws of a function from outside it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import operator_schema
from torchlayers.core.errors import DataDependentError
from torchlayers.random.aten_samplers import draws_nothing

OnTensors = Callable[[Sequence[Tensor]], list[Tensor]]

# Operators whose results are constants to torch's derivatives, by name without a trailing "_".
_CONSTANT = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("uniform", "normal", "normal_functional", "log_normal", "cauchy", "exponential"),
    *("geometric", "random", "bernoulli", "binomial", "poisson", "multinomial"),
}


class _Thread(threading.local):
    outside: "tuple[DrawRecorder, ...]" = ()  # those whose functions are running, innermost last


_thread = _Thread()


class DrawRecorder:
    """Replays given draws in a function, or records the draws that it makes.

    Args:
        given: the draws to replay; None to record.
    """

    def __init__(self, replayed: Sequence[Tensor] | None = None) -> None:
        self._replayed = None if replayed is None else iter(replayed)
        self.noted: list[Tensor] = []

    def call(self, func: OnTensors, tensors: Sequence[Tensor]) -> list[Tensor]:
        before = _thread.outside
        with _C.drawn_outside_entry(self._draw):
            _thread.outside = (*before, self)
            try:
                return func(tensors)
            finally:
                _thread.outside = before

    def draw(self, draw: Callable[[], list[Tensor]], count: int) -> list[Tensor]:
        """Returns ``count`` tensors, replayed or drawn now."""
        if self._replayed is not None:
            return [next(self._replayed).clone() for _ in range(count)]
        with pause_recording():
            drawn = draw()
        self.noted += [x.clone() for x in drawn]  # the function may write to what it draws
        return drawn

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draws without recording or replaying inside."""
        before = self._replayed, self.noted
        self._replayed, self.noted = None, []
        try:
            yield
        finally:
            self._replayed, self.noted = before

    def _draw(self, name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns an operator's results, below the function's layer; None if it draws nothing."""
        operator = getattr(_packet(name), overload or "default")
        if (name.removeprefix("aten::").rstrip("_")) in _CONSTANT:
            written = kwargs.get("out", args[0] if operator_schema.writes(operator) else None)
            (drawn,) = self.draw(lambda: [operator(*args, **kwargs)], 1)
            return drawn if written is None or written is drawn else written.copy_(drawn)
        if draws_nothing(name, overload, args, kwargs):
            return None
        if name == "aten::native_dropout":
            x, p, *_ = args
            (mask,) = self.draw(lambda: [operator(*args, **kwargs)[1]], 1)
            return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask
        raise DataDependentError(
            f"torchlayers: compile: {name} in a captured loop draws random numbers that its "
            "derivative depends on, which is not supported."
        )


def _packet(name: str) -> Any:
    namespace, _, base = name.partition("::")
    return getattr(getattr(torch.ops, namespace), base)


@contextmanager
def pause_recording() -> Iterator[None]:
    """Makes functions inside draw without recording or replaying: they run only for shapes."""
    with ExitStack() as stack:
        for recorder in _thread.outside:
            stack.enter_context(recorder.paused())
        yield


def draw_in_enclosing_function(draw: Callable[[], list[Tensor]], count: int) -> list[Tensor]:
    """Draws for all steps of a loop, recorded or replayed by the enclosing function, if any."""
    if not _thread.outside:
        return draw()
    if (top := _C.top()) is None or top[0] != "drawn outside":
        raise DataDependentError(
            "torchlayers: compile: a loop that draws random numbers inside a vmap in another "
            "loop's body is not supported."
        )
    return _thread.outside[-1].draw(draw, count)
