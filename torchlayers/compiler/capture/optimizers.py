"""Captures steps of torch.optim optimizers.

Their state is Python state and tensors like any other, with two exceptions. The first step creates
it, so that step runs uncompiled. And counters are tensors that are converted to Python numbers; in
a captured graph they stay tensors, of double precision like Python's floats. An optimizer that
branches on them takes its capturable code path, for CUDA graphs, which does not. Closures convert
as code outside steps does, and so does LBFGS, which has no counters.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from torchlayers.compiler.capture.state.guarded_place import GuardedPlace
from torchlayers.compiler.capture.state.state_holders import StatePlace, holds_fake
from torchlayers.core.device import CPU
from torchlayers.core.errors import DataDependentError, TransformError, location, location_of
from torchlayers.core.shared_change import SharedChange, replace_attributes

# They branch on their counters, unless their groups are "capturable".
_DECIDING = (torch.optim.RAdam, torch.optim.ASGD)


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
        self.stepped: list[Optimizer] = []
        self._known: list[set[Any]] = []  # the parameters that have state, of each
        self._is_stepping = False
        self._keeps_tensors = False  # where numbers are asked for
        self._groups: list[tuple[dict[str, Any], str, Any]] = []  # group, key, value before
        self._counters: list[tuple[Tensor, dict[str, Any], str]] = []  # counter, state, name

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the steps of this thread inside; restores the optimizers' flags on exit."""
        try:
            with _thread.watched_by(self):
                yield
        except DataDependentError as error:
            if not self._is_stepping:
                raise
            name = type(self.stepped[-1]).__name__
            raise DataDependentError(
                f"torchlayers: compile: {name} branches on values in its state."
                f"{location_of(error)} Step outside the compiled function."
            ) from error
        finally:
            self._put_flags_back()

    def item(self, x: Tensor, read: Callable[[Tensor], Any]) -> Any:
        """Replaces ``x.item()``: of a counter, while an optimizer steps, the result is a tensor."""
        if self._keeps_tensors and x.dim() == 0:
            return x.to(torch.float64)
        return read(x)

    @contextlib.contextmanager
    def closure_called(self) -> Iterator[None]:
        """Inside, a closure runs that was given to a step."""
        before, self._keeps_tensors = self._keeps_tensors, False
        try:
            yield
        finally:
            self._keeps_tensors = before

    def before_step(self, optimizer: Optimizer) -> None:
        is_lbfgs = isinstance(optimizer, torch.optim.LBFGS)
        if is_lbfgs and not optimizer.state:  # its step calls the closure many times
            raise FirstStepError(optimizer)
        if all(optimizer is not known for known in self.stepped):
            self.stepped.append(optimizer)
            self._known.append(
                {key for key, parameter_state in optimizer.state.items() if parameter_state}
            )
        self._is_stepping = True
        self._keeps_tensors = not is_lbfgs
        for group in optimizer.param_groups:
            self._set(group, "foreach", False)  # which accepts no tensors as numbers
            if isinstance(optimizer, _DECIDING):
                self._set(group, "capturable", True)
                for parameter in group["params"]:
                    self._count_in_double(optimizer.state.get(parameter, {}))

    def after_step(self, optimizer: Optimizer) -> None:
        self._is_stepping = self._keeps_tensors = False
        self._put_flags_back()
        while self._counters:
            counter, state, name = self._counters.pop()
            counter.copy_(state[name])
            state[name] = counter
        index = next(i for i, known in enumerate(self.stepped) if known is optimizer)
        for parameter, parameter_state in optimizer.state.items():
            if parameter not in self._known[index] and any(
                map(holds_fake, parameter_state.values())
            ):
                raise FirstStepError(optimizer)

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

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not _thread.watching:
            return None
        for steps in _thread.watching:
            steps.before_step(optimizer)
        named = {name: _as_closure(value) for name, value in kwargs.items()}
        return (args[0], *map(_as_closure, args[1:])), named  # the first is the optimizer

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for steps in _thread.watching:
            steps.after_step(optimizer)

    def and_host(of: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def devices(*args: Any, **named: Any) -> list[str]:
            devices_of_torch = of(*args, **named)
            return [*devices_of_torch, CPU.type] if _thread.watching else devices_of_torch

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


def _as_closure(argument: Any) -> Any:
    """The argument of a step; a function is a closure, inside which no counters are read."""
    if not callable(argument):
        return argument

    def closure(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for steps in _thread.watching:
                stack.enter_context(steps.closure_called())
            return argument(*args, **kwargs)

    return closure


# Needed around OptimizerSteps.noted.
steps_watched = SharedChange(_watch_steps)


def places_of_optimizer(optimizer: Optimizer) -> list[GuardedPlace]:
    """Returns what the steps of an optimizer read, besides gradients and data."""
    name = type(optimizer).__name__
    groups: list[Any] = optimizer.param_groups
    state: Any = optimizer.state
    tables = [*groups, *state.values()]
    lists = [groups, *(group["params"] for group in groups)]
    attributes = {"state": state, "param_groups": groups}
    return [
        GuardedPlace(
            "items",
            vars(optimizer),
            (*attributes,),
            (*attributes.values(),),
            f"{{}} of {name}",
            ("", ""),
        ),
        GuardedPlace("whole", state, (*state,), (*state.values(),), name, (name, "states")),
        *(
            GuardedPlace(
                "list", container, (), (*container,), f"a parameter of {name}", (name, "parameters")
            )
            for container in lists
        ),
        *(
            GuardedPlace(
                "whole",
                container,
                (*container,),
                (*container.values(),),
                f"{{}} of {name}",
                (name, ""),
            )
            for container in tables
        ),
    ]


def rates_of(optimizers: Sequence[Optimizer]) -> list[StatePlace]:
    """Returns the places of learning rates, which schedulers set: they are numbers of each call."""
    return [
        StatePlace("items", group, "lr")
        for optimizer in optimizers
        for group in optimizer.param_groups
        if type(group.get("lr")) is float and not group.get("fused")
    ]
