"""Loops of a number of steps in a recording: one operator, whose body is recorded once.

NOTE [A loop that is rolled]
Written out, a loop of a thousand steps is thousands of operators, and a compiler takes minutes. So
a long one is recorded as a scan (scan_op.py), whose body stands for all steps. It runs twice
to see that it may: it has to come to the same operators on the same tensors, with the same numbers.
One that counts or reads from an iterator is refused. Loops are written out whose body asks Python
what number a step has, carries numbers that change, writes to tensors from outside, names values
for taps, or draws by keys that a layer around counts; and so are those in torch.func's own grad,
and short ones, whose steps a compiler joins.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.checks import Carry
from torchlayers.control_flow.slices import Slices
from torchlayers.control_flow.traced.closure_conversion import (
    Lifted,
    is_differentiated,
    is_in_torchs_own,
    unrecorded,
)
from torchlayers.control_flow.traced.loop_steps import Steps
from torchlayers.control_flow.traced.scan_draws import drawn_first
from torchlayers.control_flow.traced.scan_op import run
from torchlayers.control_flow.traced.transformed import Tensors
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError, location
from torchlayers.taps import loop_steps

# So many steps, and no more, are written out.
SHORT = 8

Step = Callable[[Any, Any], tuple[Any, Any]]


class _DiffersError(Exception):
    """A step can't stand for all."""


class _OtherwiseError(TransformError):
    """The body is another each time that it runs."""


def may_be_rolled(length: Any) -> bool:
    """Whether a loop of so many steps is recorded, and nobody has to see each."""
    return (
        (isinstance(length, torch.SymInt) or length > SHORT)
        and torch._guards.detect_fake_mode() is not None
        and not loop_steps.thread.listeners
        and not tracing_state.is_tracing()
        and not tracing_state.is_exporting()
        and not is_in_torchs_own()
    )


def rolled(
    kept: Carry, step: Step, init: Any, slices: Slices, *, reverse: bool = False
) -> tuple[Any, Any] | None:
    """The last carry and the ys of a scan; None where it has to be written out.

    Args:
        kept: what the carry has to be like.
        step: takes the carry and a slice.
    """
    try:
        return _rolled(kept, step, init, slices, reverse)
    except _OtherwiseError:
        raise
    except Exception:  # whoever's mistake it is, it shows where the loop is written out
        return None


def _rolled(kept: Carry, step: Step, init: Any, slices: Slices, reverse: bool) -> tuple[Any, Any]:
    carry = _Leaves(init)
    xs = slices.leaves or [torch.arange(slices.length)]  # torch wants to take something apart
    carried, given = len(carry.tensors), len(carry.tensors) + len(xs)
    ys: list[_Leaves] = []

    def body(tensors: Tensors) -> list[Tensor]:
        new, y = step(carry.put_in(tensors[:carried]), slices.of(tensors[carried:given]))
        kept.leaves(new)
        following = _Leaves(new)
        if following.constants != carry.constants:
            raise _DiffersError("it carries numbers that change")
        ys.append(_Leaves(y))
        return [*following.tensors, *ys[-1].tensors]

    with unrecorded():
        firsts = [x.select(0, 0) for x in xs]
    lifted = Lifted([body, body], [*carry.tensors, *firsts])
    if lifted.draws_by_key:
        raise _DiffersError("each step has a key of its own")
    if not lifted.alike or ys[0].constants != ys[1].constants:
        raise _OtherwiseError(
            f"torchlayers: {kept.api}: a recording has one body for all {slices.length} steps, and "
            f"this {kept.body} did something else when it ran again.{location()} What changes from "
            "step to step has to be in the carry or among the xs: no counters, iterators or random "
            "numbers of Python. A loop in Python is recorded a step at a time."
        )
    if lifted.writes:
        raise _DiffersError("it writes to a tensor from outside")
    if any(value is not None for value in ys[0].constants.values()):
        raise _DiffersError("a y is no tensor")
    across = [x.flip(0) if reverse else x for x in xs]
    steps = Steps(lifted.functions[0], carried, len(across))
    captured = lifted.tensors[given:]
    if lifted.draws and is_differentiated(lifted.tensors):
        steps, drawn = drawn_first(steps, [*carry.tensors, *across, *captured])
        across += drawn
    results = run(steps, [*carry.tensors, *across, *captured])
    stacked = [y.flip(0) if reverse else y for y in results[carried:]]
    return carry.put_in(results[:carried]), ys[0].put_in(stacked)


class _Leaves:
    """A pytree's tensors; everything else in it is constant."""

    def __init__(self, values: Any) -> None:
        leaves, self._spec = pytree.flatten(values)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = {i: leaf for i, leaf in enumerate(leaves) if not self._is_tensor[i]}
        self.constants = others

    def put_in(self, tensors: Tensors) -> Any:
        given = iter(tensors)
        leaves = [
            next(given) if is_tensor else self.constants[i]
            for i, is_tensor in enumerate(self._is_tensor)
        ]
        return pytree.unflatten(leaves, self._spec)
