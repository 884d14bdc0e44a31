"""Captures a loop with a known number of steps as one operator, whose body is captured once.

NOTE [A loop that is rolled]
Unrolled, a loop of a thousand steps is thousands of operators, which take minutes to compile. So a
long loop is captured as a scan (scan_op.py), whose body represents all steps. To verify that it
can, the body runs twice: both runs must call the same operators on the same tensors, with the same
numbers. A body that counts or reads from an iterator is rejected. A loop is unrolled if its body
needs the step number as a Python int, carries numbers that change, writes to tensors from outside,
has taps, draws by keys that an enclosing layer counts, or reads a view x[i] after x was written to
(which the whole graph shows: the function is captured again). So are loops inside torch.func's own
grad, those inside layers written in Python that process each operator or whose attributes change as
they do, and short loops, whose steps a compiler can fuse.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.checks import Carry
from torchlayers.control_flow.slices import Slices
from torchlayers.control_flow.traced.closure_conversion import (
    ClosureConverted,
    capture_paused,
    is_inside_torch_func,
    may_be_differentiated,
)
from torchlayers.control_flow.traced.layer_state import (
    is_every_operator_processed,
    is_inside_python_layer,
)
from torchlayers.control_flow.traced.loop import TracedScan
from torchlayers.control_flow.traced.scan_draws import hoist_draws
from torchlayers.control_flow.traced.scan_op import run
from torchlayers.control_flow.traced.transformed import Tensors
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError, location
from torchlayers.core.torch_private import fake_mode
from torchlayers.fx.unrolled_loops import are_loops_unrolled
from torchlayers.taps import loop_steps

# Loops of at most this many steps are unrolled.
MAX_UNROLLED = 8

Step = Callable[[Any, Any], tuple[Any, Any]]


class _CannotRollError(Exception):
    """One step can't represent all steps: the loop has to be unrolled."""


class _NondeterministicBodyError(TransformError):
    """The body does something else each time it runs: the loop is rejected."""


def may_capture_scan(length: Any) -> bool:
    """Whether a loop of this length is captured, and may be captured as a scan."""
    return (
        (isinstance(length, torch.SymInt) or length > MAX_UNROLLED)
        and fake_mode() is not None
        and not are_loops_unrolled()
        and not loop_steps.thread.listeners
        and not tracing_state.is_tracing()
        and not tracing_state.is_exporting()
        and not is_inside_torch_func()
        and not is_every_operator_processed()
    )


def capture_scan(
    checks: Carry, step: Step, init: Any, slices: Slices, *, reverse: bool = False
) -> tuple[Any, Any] | None:
    """Captures a scan; returns the last carry and the ys, or None if it has to be unrolled.

    Args:
        checks: checks the carry's structure, shapes and dtypes.
        step: takes the carry and a slice; returns the next carry and y.
    """
    try:
        return _capture_scan(checks, step, init, slices, reverse)
    except _NondeterministicBodyError:
        raise
    except Exception:  # any real error is raised again when the loop is unrolled
        return None


def _capture_scan(
    checks: Carry, step: Step, init: Any, slices: Slices, reverse: bool
) -> tuple[Any, Any]:
    carry = pytree.TensorLeaves(init)
    xs = slices.leaves or [torch.arange(slices.length)]  # torch's scan needs at least one x
    carried, uncaptured = len(carry.tensors), len(carry.tensors) + len(xs)
    ys: list[pytree.TensorLeaves] = []

    def body(tensors: Tensors) -> list[Tensor]:
        new, y = step(
            carry.put_in(tensors[:carried]), slices.unflatten(tensors[carried:uncaptured])
        )
        checks.leaves(new)
        following = pytree.TensorLeaves(new)
        if following.constants != carry.constants:
            raise _CannotRollError("it carries numbers that change")
        ys.append(pytree.TensorLeaves(y))
        return [*following.tensors, *ys[-1].tensors]

    with capture_paused():
        firsts = [x.select(0, 0) for x in xs]
    lifted = ClosureConverted([body, body], [*carry.tensors, *firsts])
    if lifted.draws_by_key:
        raise _CannotRollError("each step has a key of its own")
    if lifted.changes_layers:
        raise _CannotRollError("a layer written in Python changes in each step")
    if not lifted.alike or ys[0].constants != ys[1].constants:
        if is_inside_python_layer():
            raise _CannotRollError("the layer or the body did something else")
        raise _NondeterministicBodyError(
            f"torchlayers: {checks.api}: a captured loop has one body for all {slices.length} "
            f"steps, but this {checks.body} did something else on its second run.{location()} What "
            "changes from step to step must be in the carry or among the xs: no counters, "
            "iterators or Python random numbers. A Python loop is captured step by step."
        )
    if lifted.writes:
        raise _CannotRollError("it writes to a tensor from outside")
    if any(value is not None for value in ys[0].constants.values()):
        raise _CannotRollError("a y is no tensor")
    across = [x.flip(0) if reverse else x for x in xs]
    steps = TracedScan(lifted.functions[0], carried, len(across))
    captured = lifted.tensors[uncaptured:]
    if lifted.draws and may_be_differentiated(lifted.tensors):
        steps, drawn = hoist_draws(steps, [*carry.tensors, *across, *captured])
        across += drawn
    results = run(steps, [*carry.tensors, *across, *captured])
    stacked = [y.flip(0) if reverse else y for y in results[carried:]]
    return carry.put_in(results[:carried]), ys[0].put_in(stacked)
