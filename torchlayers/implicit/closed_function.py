"""Finds the tensors that a function captures, and makes them arguments.

NOTE [Captured by a function that is solved]
A solution is differentiated with respect to everything that its equation depends on, and most of
that is captured: closures, parameters of modules. So the function runs once at the solution, under
a mode that notes the tensors from outside that matter: those that are tracked at some level, or
batched. They become operands of an autograd.Function, whose rules run the function again with other
tensors in their place.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.control_flow.traced.closure_conversion import (
    NotingMode,
    SubstituteMode,
    capture_paused,
)
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError, location
from torchlayers.core.torch_private import (
    dual_level,
    fake_mode,
    functorch,
    set_forward_mode,
    stack_depth,
    torch_c,
)
from torchlayers.fx.operator_tracer import records_operators
from torchlayers.implicit.undifferentiated import undifferentiated
from torchlayers.remat.ambient_state import AutocastState, apply_view_modes
from torchlayers.transforms.tensor_provenance import captured_variables, tensors_in

Tensors = Sequence[Tensor]
OnTensors = Callable[[Tensors], list[Tensor]]


class ClosedFunction:
    """A function of a list of tensors, closed over the tensors that it captures.

    Args:
        api: the public function's name in error messages.
        func: takes a list of tensors, and returns a list of tensors.
        example: the tensors at which to look for captured ones.

    Attributes:
        results: func's results for the example, undifferentiated.
        captured: the tensors that func captures, as they are seen here.
    """

    def __init__(self, api: str, func: OnTensors, example: Tensors) -> None:
        self.api = api
        self.func = func
        self.autocast = AutocastState()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_unrecorded())
            depth = stack_depth()
            inputs = [x.view_as(x) for x in example]
            # autograd.Functions are seen by modes only if there is a layer.
            if depth == 0:
                stack.enter_context(_C.grad_entry())
            noting = stack.enter_context(_TrackedMode(inputs, depth))
            self.results = func(inputs)
        if depth == 0:
            self.results = [_unwrapped(x) for x in self.results]
        self._ids = [*noting.captured]
        self._originals = [*noting.captured.values()]  # alive, so that no id is used again
        self.captured: list[Tensor] = apply_view_modes(self._originals)

    def __call__(self, tensors: Tensors) -> list[Tensor]:
        """Calls func with other tensors: its own arguments, then one for each captured tensor."""
        count = len(tensors) - len(self._ids)
        inputs, others = tensors[:count], tensors[count:]
        with self.autocast.restored():
            if all(x is other for x, other in zip(others, self._originals, strict=True)):
                return self.func(inputs)
            inputs = [x.view_as(x) for x in inputs]  # func may have captured the same tensor
            mode = _ReplacingMode(
                self.api, [*inputs, *others], dict(zip(self._ids, others, strict=True))
            )
            with torch_c._EnableTorchFunction(), mode:
                results = self.func(inputs)
            return [mode.sample(x) for x in results]


class ClosedSolvers:
    """Linear solvers closed over the tensors that their closures hold.

    A solver is not differentiated, and running it to see what it captures could take long. So its
    closures, arguments bound by partial, globals and attributes are searched. What they hold and
    matters becomes operands, without derivatives.
    """

    def __init__(self, solvers: Sequence[Callable[..., Any] | None]) -> None:
        captured: dict[int, Tensor] = {}
        for solver in solvers:
            if solver is not None:
                _search(solver, captured, set())
        self._originals = [*captured.values()]
        self.captured: list[Tensor] = [
            x if x.requires_grad and functorch.maybe_get_level(x) == -1 else x.detach()
            for x in apply_view_modes(self._originals)
        ]

    @contextlib.contextmanager
    def replaced_by(self, tensors: Tensors) -> Iterator[None]:
        """Solvers that run inside see these tensors instead."""
        pairs = zip(tensors, self._originals, strict=True)
        swapped = {id(old): new for new, old in pairs if new is not old}
        if not swapped:
            yield
            return
        with SubstituteMode([*tensors], swapped):
            yield


def _search(func: Any, captured: dict[int, Tensor], visited: set[int]) -> None:
    if id(func) in visited:
        return
    visited.add(id(func))
    for _, value in captured_variables(func):
        for _, x in tensors_in(value):
            if id(x) not in captured and _matters(apply_view_modes(x)):
                captured[id(x)] = x
        for leaf in pytree.leaves(value):
            if isinstance(leaf, (types.FunctionType, types.MethodType, functools.partial)):
                _search(leaf, captured, visited)


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    with undifferentiated():
        if records_operators() and fake_mode() is not None:
            with capture_paused():
                yield
        else:
            yield


def _unwrapped(x: Tensor) -> Tensor:
    while functorch.maybe_get_level(x) != -1:
        x = functorch.get_unwrapped(x)
    return x


class _TrackedMode(NotingMode):
    """Notes the captured tensors that are tracked at some level, or batched."""

    def matters(self, x: Tensor) -> bool:
        return _matters(x)


def _matters(x: Tensor) -> bool:
    if x.requires_grad or functorch.maybe_get_level(x) > 0:
        return True
    if dual_level() < 0:
        return False
    with set_forward_mode(True):
        return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


class _ReplacingMode(SubstituteMode):
    """Replaces captured tensors; raises an error for one that was not captured at the solution."""

    def __init__(self, api: str, inputs: Tensors, swapped: dict[int, Tensor]) -> None:
        super().__init__(inputs, swapped)
        self._api = api

    def sample(self, x: Tensor) -> Tensor:
        shown = super().sample(x)
        is_lost = shown is x and x.requires_grad and id(x) not in self.created
        if is_lost and functorch.maybe_get_level(x) == -1 and not self.is_replaced(x):
            raise TransformError(
                f"torchlayers: {self._api}: the function used a tensor of shape {tuple(x.shape)} "
                "that requires grad, and that it did not use when it was called at the solution. "
                f"Its gradient would be lost.{location()} The function must capture the same "
                "tensors each time: create them before the call."
            )
        return shown
