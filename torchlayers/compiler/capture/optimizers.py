"""Captures steps of torch.optim optimizers.

The state of an optimizer is written at each call like other captured tensors. Its first step
creates the state, so that step runs uncompiled. Its counters are tensors that are converted to
Python numbers; in a captured graph they stay tensors, of double precision like Python's floats. An
optimizer that branches on them takes its capturable code path, for CUDA graphs, which does not. A
learning rate is an input of the graph, a tensor of double precision, so that a scheduler may set
it. All else in the parameter groups is constant: a changed value is another signature, and so is a
state that was loaded.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from torchlayers.compiler.capture.errors import NotWritableError
from torchlayers.compiler.capture.traced_numbers import HostNumber
from torchlayers.core.device import CPU
from torchlayers.core.errors import DataDependentError, TransformError, location, location_of
from torchlayers.core.shared_change import SharedChange, replace_attributes
from torchlayers.core.torch_private import FakeTensor, dispatch_modes

# They branch on their counters, unless their groups are "capturable".
_DECIDING = (torch.optim.RAdam, torch.optim.ASGD)


class OptimizerGuard(NamedTuple):
    """An optimizer that the function steps.

    Attributes:
        held: named values of its groups and the state of its parameters before the step.
        rates: learning rates that are inputs: the index of the group, and the tensor.
    """

    optimizer: Optimizer
    held: list[Any]
    rates: list[tuple[int, Tensor]]

    def read_rates(self) -> None:
        """Sets the inputs to the current learning rates."""
        for i, rate in self.rates:
            rate.fill_(self.optimizer.param_groups[i]["lr"])


class FirstStepError(TransformError):
    """An optimizer without state takes a step: the call runs uncompiled, and creates the state."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(
            f"torchlayers: compile: {type(optimizer).__name__} creates its state at its first step."
            f"{location()} Call the function once before it is captured by lower or make_graph."
        )


class OptimizerSteps:
    """The optimizer steps of one capture."""

    def __init__(self) -> None:
        self.stepped: list[OptimizerGuard] = []
        self._states: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []
        self._is_stepping = False
        self._groups: list[tuple[dict[str, Any], str, Any]] = []  # group, key, value before
        self._counters: list[tuple[Tensor, dict[str, Any], str]] = []  # counter, state, name

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the steps of this thread inside; restores the optimizers' states on exit."""
        try:
            with _thread.watched_by(self):
                yield
        except DataDependentError as error:
            if not self._is_stepping:
                raise
            name = type(self.stepped[-1].optimizer).__name__
            raise DataDependentError(
                f"torchlayers: compile: {name} branches on values in its state."
                f"{location_of(error)} Step outside the compiled function."
            ) from error
        finally:
            self._put_flags_back()
            for optimizer, state in self._states:
                _put_back(optimizer, state)

    def item(self, x: Tensor, read: Callable[[Tensor], Any]) -> Any:
        """Replaces ``x.item()``: while an optimizer steps, the result is a tensor."""
        if self._is_stepping and x.dim() == 0:
            return x.to(torch.float64)
        return read(x)

    def before_step(self, optimizer: Optimizer) -> None:
        if all(optimizer is not known.optimizer for known in self.stepped):
            self.stepped.append(
                OptimizerGuard(optimizer, state_read_by_step(optimizer), _rates_of(optimizer))
            )
            self._states.append((optimizer, _copied(optimizer)))
        self._is_stepping = True
        stepped = next(known for known in self.stepped if known.optimizer is optimizer)
        for i, rate in stepped.rates:
            group = optimizer.param_groups[i]
            self._groups.append((group, "lr", group["lr"]))
            group["lr"] = rate
        for group in optimizer.param_groups:
            self._set(group, "foreach", False)  # which accepts no tensors as numbers
            if isinstance(optimizer, _DECIDING):
                self._set(group, "capturable", True)
                for parameter in group["params"]:
                    self._count_in_double(optimizer.state.get(parameter, {}))

    def after_step(self, optimizer: Optimizer) -> None:
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
                    what = f"changes {name!r} in the state of {type(optimizer).__name__}"
                    raise NotWritableError(what, "step outside the compiled function")

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


class _Thread(threading.local):
    """The captures on this thread that watch optimizers, innermost last."""

    def __init__(self) -> None:
        self.watching: list[OptimizerSteps] = []

    @contextlib.contextmanager
    def watched_by(self, steps: OptimizerSteps) -> Iterator[None]:
        self.watching.append(steps)
        try:
            yield
        finally:
            self.watching.pop()


_thread = _Thread()


def _watch_steps() -> Callable[[], None]:
    """Registers hooks of optimizers, and allows capturable groups on the CPU, where torch rejects
    them for want of CUDA graphs. On threads without a capture, all is as before."""

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for steps in _thread.watching:
            steps.before_step(optimizer)

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for steps in _thread.watching:
            steps.after_step(optimizer)

    def and_host(of: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def devices(*args: Any, **named: Any) -> list[str]:
            found = of(*args, **named)
            return [*found, CPU.type] if _thread.watching else found

        return devices

    modules: list[Any] = [sys.modules[kind.__module__] for kind in _DECIDING]
    name = "_get_capturable_supported_devices"
    restore_devices = replace_attributes(
        [(module, name, and_host(getattr(module, name))) for module in modules]
    )
    handles = [
        optimizers.register_optimizer_step_pre_hook(before_step),
        optimizers.register_optimizer_step_post_hook(after_step),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()
        restore_devices()

    return undo


# Needed around OptimizerSteps.noted.
steps_watched = SharedChange(_watch_steps)


def states_unchanged(stepped: Sequence[OptimizerGuard]) -> bool:
    """Whether optimizers hold the same tensors and numbers as at the capture."""
    return all(_are_same(state_read_by_step(each.optimizer), each.held) for each in stepped)


def difference(stepped: Sequence[OptimizerGuard]) -> str:
    """Describes the first difference in the optimizers' state; empty if there is none."""
    for optimizer, held, _ in stepped:
        for (name, now), (_, before) in zip(state_read_by_step(optimizer), held, strict=False):
            if not _are_same([now], [before]):
                shown = "" if isinstance(now, Tensor) else f", {now!r}"
                return f"{name} of {type(optimizer).__name__} has changed{shown}"
    return ""


def state_read_by_step(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """Returns the named values that an optimizer's steps read, besides gradients."""
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
    """Whether the learning rate of a group is an input of captured graphs, not a constant."""
    return type(_rate_of(group)) is float and not group.get("fused")


def _rate_of(group: dict[str, Any]) -> Any:
    """The learning rate of a group, which may be traced: a scheduler replaces it."""
    rate = group.get("lr")
    return rate.value if type(rate) is HostNumber else rate


def _rates_of(optimizer: Optimizer) -> list[tuple[int, Tensor]]:
    if not type(optimizer).__module__.startswith("torch.optim"):  # it may branch on the rate
        return []
    with dispatch_modes._disable_current_modes():
        return [
            (i, torch.tensor(_rate_of(group), dtype=torch.float64))
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
