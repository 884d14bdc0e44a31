"""The optimizers of torch.optim that a recorded function steps.

What an optimizer keeps is written at each call as other captured tensors are. Its first step makes
that, so that one runs as it is. Its counters are tensors that Python makes numbers of; in a
recording they stay tensors, of double precision as Python's numbers are. Where it decides by them,
it steps as it does in a CUDA graph, which decides nothing. A learning rate is an input of the
recording, a tensor of double precision, so that a scheduler may set it. Whatever else its groups
hold is a constant: another one is another signature, and so is a state that was loaded.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _disable_current_modes

from torchlayers.core.device import HOST
from torchlayers.core.errors import DataDependentError, TransformError, location, location_of

# They decide by counters, unless their groups are "capturable".
_DECIDING = (torch.optim.RAdam, torch.optim.ASGD)


class Stepped(NamedTuple):
    """An optimizer that is stepped.

    Attributes:
        held: what it held before its step: of each group and each parameter.
        rates: learning rates that are inputs: of which group, and the tensor.
    """

    optimizer: Optimizer
    held: list[Any]
    rates: list[tuple[int, Tensor]]

    def read_rates(self) -> None:
        """The inputs are the learning rates of now."""
        for i, rate in self.rates:
            rate.fill_(self.optimizer.param_groups[i]["lr"])


class FirstStepError(TransformError):
    """An optimizer steps that has no state yet: the call runs as it is, and makes it."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(
            f"torchlayers: compile: {type(optimizer).__name__} makes its state at its first step."
            f"{location()} Call the function once before it is recorded by lower or make_graph."
        )


class Steps:
    """The steps of one recording."""

    def __init__(self) -> None:
        self.stepped: list[Stepped] = []
        self._states: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []
        self._is_stepping = False
        self._groups: list[tuple[dict[str, Any], str, Any]] = []  # with what was changed in them
        self._counters: list[tuple[Tensor, dict[str, Any], str]] = []  # and where they are
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, this thread's steps are; afterwards states hold what they held."""
        handles = [
            optimizers.register_optimizer_step_pre_hook(self._before),
            optimizers.register_optimizer_step_post_hook(self._after),
        ]
        try:
            with _capturable_anywhere():
                yield
        except DataDependentError as error:
            if not self._is_stepping:
                raise
            name = type(self.stepped[-1].optimizer).__name__
            raise DataDependentError(
                f"torchlayers: compile: {name} decides by values that it keeps how it steps."
                f"{location_of(error)} Step outside the compiled function."
            ) from error
        finally:
            for handle in handles:
                handle.remove()
            self._put_flags_back()
            for optimizer, state in self._states:
                _put_back(optimizer, state)

    def item(self, x: Tensor) -> Any:
        """``x.item()``: of a counter, while an optimizer steps, a tensor."""
        if self._is_stepping and x.dim() == 0:
            return x.to(torch.float64)
        return x.item()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if all(optimizer is not known.optimizer for known in self.stepped):
            self.stepped.append(Stepped(optimizer, held_by(optimizer), _rates_of(optimizer)))
            self._states.append((optimizer, _copied(optimizer)))
        self._is_stepping = True
        stepped = next(known for known in self.stepped if known.optimizer is optimizer)
        for i, rate in stepped.rates:
            group = optimizer.param_groups[i]
            self._groups.append((group, "lr", group["lr"]))
            group["lr"] = rate
        for group in optimizer.param_groups:
            self._set(group, "foreach", False)  # which takes no tensors for numbers
            if isinstance(optimizer, _DECIDING):
                self._set(group, "capturable", True)
                for parameter in group["params"]:
                    self._count_in_double(optimizer.state.get(parameter, {}))

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._is_stepping = False
        self._put_flags_back()
        while self._counters:
            counter, state, name = self._counters.pop()
            counter.copy_(state[name])
            state[name] = counter
        before = next(state for known, state in self._states if known is optimizer)
        for parameter, held in optimizer.state.items():
            for name, value in held.items():
                was = before.get(parameter, {}).get(name)
                if isinstance(value, FakeTensor):
                    raise FirstStepError(optimizer)
                if value is not was and value != was:
                    raise TransformError(
                        f"torchlayers: compile: {type(optimizer).__name__} keeps {name!r} in its "
                        f"state, which is no tensor, and Python runs once.{location()} Step "
                        "outside."
                    )

    def _set(self, group: dict[str, Any], name: str, flag: bool) -> None:
        if bool(group.get(name)) is not flag:
            self._groups.append((group, name, group[name]))
            group[name] = flag

    def _put_flags_back(self) -> None:
        while self._groups:
            group, name, before = self._groups.pop()
            group[name] = before

    def _count_in_double(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
                self._counters.append((value, state, name))
                state[name] = value.to(torch.float64, copy=True)


@contextlib.contextmanager
def _capturable_anywhere() -> Iterator[None]:
    """On a CPU there are no CUDA graphs, and torch refuses to be prepared for one.

    To other threads it still does.
    """
    modules: list[Any] = [sys.modules[kind.__module__] for kind in _DECIDING]
    name = "_get_capturable_supported_devices"
    before = [getattr(module, name) for module in modules]
    thread = threading.get_ident()

    def and_host(of: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def devices(*args: Any, **named: Any) -> list[str]:
            found = of(*args, **named)
            return [*found, HOST.type] if threading.get_ident() == thread else found

        return devices

    for module, devices in zip(modules, before, strict=True):
        setattr(module, name, and_host(devices))
    try:
        yield
    finally:
        for module, devices in zip(modules, before, strict=True):
            setattr(module, name, devices)


def hold_the_same(stepped: Sequence[Stepped]) -> bool:
    """Whether optimizers hold the tensors and numbers that they held."""
    return all(_are_same(held_by(each.optimizer), each.held) for each in stepped)


def difference(stepped: Sequence[Stepped]) -> str:
    """What an optimizer holds that it did not, in words, or nothing."""
    for optimizer, held, _ in stepped:
        for (name, now), (_, before) in zip(held_by(optimizer), held, strict=False):
            if not _are_same([now], [before]):
                shown = "" if isinstance(now, Tensor) else f", {now!r}"
                return f"{name} of {type(optimizer).__name__} is another{shown}"
    return ""


def held_by(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """What its steps read, besides gradients, by name."""
    held = []
    for group in optimizer.param_groups:
        held += [
            (name, float if name == "lr" and _is_rate(group) else value)
            for name, value in group.items()
            if name != "params"
        ]
        for parameter in group["params"]:
            held.append(("a parameter", parameter))
            state = optimizer.state.get(parameter, {})
            held += [(name, value) for name, value in state.items()]
    return held


def _is_rate(group: dict[str, Any]) -> bool:
    """Whether the learning rate of a group is an input of recordings, and no constant."""
    return type(group.get("lr")) is float and not group.get("fused")


def _rates_of(optimizer: Optimizer) -> list[tuple[int, Tensor]]:
    if not type(optimizer).__module__.startswith("torch.optim"):  # it may decide by one
        return []
    with _disable_current_modes():
        return [
            (i, torch.tensor(group["lr"], dtype=torch.float64))
            for i, group in enumerate(optimizer.param_groups)
            if _is_rate(group)
        ]


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple):
        return _are_same(now, before)
    if isinstance(now, Tensor) or isinstance(before, Tensor):
        return now is before
    return type(now) is type(before) and bool(now == before)


def _put_back(optimizer: Optimizer, state: dict[Any, dict[str, Any]]) -> None:
    for parameter in [*optimizer.state]:
        if parameter not in state:
            del optimizer.state[parameter]
        elif not _are_same([*optimizer.state[parameter].items()], [*state[parameter].items()]):
            optimizer.state[parameter].clear()
            optimizer.state[parameter].update(state[parameter])


def _copied(optimizer: Optimizer) -> dict[Any, dict[str, Any]]:
    return {parameter: dict(state) for parameter, state in optimizer.state.items()}
