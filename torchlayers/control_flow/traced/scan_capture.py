"""Captures a loop with a known number of steps as one operator, whose body is captured once.

NOTE [A loop that is rolled]
Unrolled, a loop of a thousand steps is thousands of operators, which take minutes to compile. So a
long loop is captured as a scan (scan_op.py), whose body represents all steps. To verify that it
can, the body runs twice: both runs must call the same operators on the same tensors, with the same
numbers. A body that counts or reads from an iterator is rejected. A loop is unrolled if its body
needs the step number as a Python int, carries numbers that change, writes to tensors from outside,
has taps, or draws by keys that an enclosing layer counts. Loops inside torch.func's own grad are
unrolled too, and so are short loops, whose steps a compiler can fuse.
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

# Loops of at most this many steps are unrolled.
SHORT = 8

Step = Callable[[Any, Any], tuple[Any, Any]]


class _DiffersError(Exception):
    """One step can't represent all steps: the loop has to be unrolled."""


class _OtherwiseError(TransformError):
    """The body does something else each time it runs: the loop is rejected."""


def may_be_rolled(length: Any) -> bool:
    """Whether a loop of this length is captured, and may be captured as a scan."""
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
    """Captures a scan; returns the last carry and the ys, or None if it has to be unrolled.

    Args:
        kept: checks the carry's structure, shapes and dtypes.
        step: takes the carry and a slice; returns the next carry and y.
    """
    try:
        return _rolled(kept, step, init, slices, reverse)
    except _OtherwiseError:
        raise
    except Exception:  # any real error is raised again when the loop is unrolled
        return None


def _rolled(kept: Carry, step: Step, init: Any, slices: Slices, reverse: bool) -> tuple[Any, Any]:
    carry = pytree.TensorLeaves(init)
    xs = slices.leaves or [torch.arange(slices.length)]  # torch's scan needs at least one x
    carried, given = len(carry.tensors), len(carry.tensors) + len(xs)
    ys: list[pytree.TensorLeaves] = []

    def body(tensors: Tensors) -> list[Tensor]:
        new, y = step(carry.put_in(tensors[:carried]), slices.of(tensors[carried:given]))
        kept.leaves(new)
        following = pytree.TensorLeaves(new)
        if following.constants != carry.constants:
            raise _DiffersError("it carries numbers that change")
        ys.append(pytree.TensorLeaves(y))
        return [*following.tensors, *ys[-1].tensors]

    with unrecorded():
        firsts = [x.select(0, 0) for x in xs]
    lifted = Lifted([body, body], [*carry.tensors, *firsts])
    if lifted.draws_by_key:
        raise _DiffersError("each step has a key of its own")
    if not lifted.alike or ys[0].constants != ys[1].constants:
        raise _OtherwiseError(
            f"torchlayers: {kept.api}: a captured loop has one body for all {slices.length} steps, "
            f"but this {kept.body} did something else on its second run.{location()} What changes "
            "from step to step must be in the carry or among the xs: no counters, iterators or "
            "Python random numbers. A Python loop is captured step by step."
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
