"""scan: a function over the slices of tensors, with what it carries from one to the next."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchlayers.control_flow.checks import Carry, check_function
from torchlayers.control_flow.slices import Slices, joined, stacked
from torchlayers.control_flow.traced import scan_capture
from torchlayers.core import pytree
from torchlayers.core.errors import OutputError, TransformError
from torchlayers.remat.checkpoint import checkpoint as checkpointed
from torchlayers.taps import loop_steps


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: bool | int = False,
    snapshots: int | None = None,
) -> tuple[Any, Any]:
    """``carry, y = f(carry, x)`` for each x in xs, the ys stacked.

    Args:
        f: takes the carry and a slice of xs; returns the next carry, of the same structure, shapes
            and dtypes, and a result: a tensor, a pytree of tensors, or None. It may capture some.
        init: the first carry.
        xs: a tensor or a pytree of tensors, which are taken apart along their first dimension; or
            None, and each x is None.
        length: how many times, where xs is None; else it may be left out.
        reverse: from the last slice to the first. The ys are in the order of the xs.
        checkpoint: what reverse mode keeps. False: all that f's operators save. True, or a number
            of steps: the carry before every so many steps (True: about the root of the length),
            from which they run again, by :func:`torchlayers.checkpoint`.
        snapshots: in place of checkpoint, how many carries reverse mode keeps at once: those from
            which the fewest steps run again, by Griewank and Walther's binomial schedule.
    Returns:
        The last carry, and the ys. Where there are no slices, f runs once on zeros to tell their
        shapes.
    Raises:
        TransformError: xs is None and so is length, checkpoint is negative, or snapshots is less
            than 1, or given beside checkpoint.
        OutputError: f does not return a pair.
        DimensionError: xs have different lengths, or none.
        StructureError: f returns a carry of another structure, shape or dtype.
    Example:
        >>> def add(total, x):
        ...     return total + x, total
        >>> torchlayers.scan(add, torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
        (tensor(6.), tensor([0., 1., 3.]))
        >>> torchlayers.scan(lambda x, _: (2 * x, None), torch.tensor(1.0), length=10)
        (tensor(1024.), None)

    Source: jax.lax.scan; Griewank and Walther, "Algorithm 799: Revolve" (2000).
    """
    check_function("scan", "f", f)
    slices = Slices("scan", xs, length)
    if isinstance(checkpoint, int) and checkpoint < 0:
        raise TransformError(
            f"torchlayers: scan: checkpoint must be a bool or a number of steps, got {checkpoint}."
        )
    if snapshots is not None and (snapshots < 1 or checkpoint):
        raise TransformError(
            "torchlayers: scan: snapshots must be at least 1, and stands in place of "
            f"checkpoint; got snapshots={snapshots}, checkpoint={checkpoint}."
        )
    loop = loop_steps.loop("scan", slices.length)
    steps = _Steps(f, reverse, loop)
    with loop.under_way():
        if snapshots is not None:
            return _binomial(steps, init, slices, 0, snapshots)
        if checkpoint and slices.length:
            size = _root(slices.length) if checkpoint is True else checkpoint
            if (found := _nested(steps, init, slices, size)) is not None:
                return found
            full, rest = slices.length // size, slices.length % size
            return _in_parts(steps, init, slices.parts([size] * full + [rest] * (rest > 0)))
        return _run(steps, init, slices, 0)


def _root(length: Any) -> int:
    """About the root; of a symbol that of the number for which the loop is recorded."""
    return math.isqrt(length.node.hint if isinstance(length, torch.SymInt) else length)


class _Steps(NamedTuple):
    """How the steps are run, from which of all slices on."""

    f: Callable[[Any, Any], tuple[Any, Any]]
    reverse: bool
    loop: loop_steps.Unheard


def _nested(steps: _Steps, init: Any, slices: Slices, size: int) -> tuple[Any, Any] | None:
    """A loop over loops of this size, and then the rest; None where that can't be.

    The reverse pass of a recorded scan runs its steps again, here so many each.
    """
    count, rest = slices.length // size, slices.length % size
    if not scan_capture.may_be_rolled(count):
        return None
    lengths = [size * count, rest]
    whole, others = slices.parts(lengths[::-1])[::-1] if steps.reverse else slices.parts(lengths)

    def run(carry: Any, xs: Any) -> tuple[Any, Any]:
        return _run(steps, carry, Slices("scan", xs, size), 0)

    found = scan_capture.rolled(
        Carry("scan", init, "f"), run, init, whole.in_rows(count, size), reverse=steps.reverse
    )
    if found is None:
        return None
    carry, ys = found[0], pytree.map_tensors(lambda y: y.flatten(0, 1), found[1])
    if not rest:
        return carry, ys
    carry, last = _run(steps, carry, others, 0)
    return carry, joined("scan", [last, ys] if steps.reverse else [ys, last])


def _in_parts(steps: _Steps, init: Any, parts: list[Slices]) -> tuple[Any, Any]:
    """Each keeps its first carry and its slices alone."""
    carry = init
    found: list[Any] = []
    firsts = [*itertools.accumulate((part.length for part in parts), initial=0)]
    numbered = [*zip(firsts[:-1], parts, strict=True)]
    for first, part in reversed(numbered) if steps.reverse else numbered:

        def run(
            carry: Any, xs: Any, first: int = first, length: int = part.length
        ) -> tuple[Any, Any]:
            return _run(steps, carry, Slices("scan", xs, length), first)

        carry, ys = checkpointed(run)(carry, part.whole())
        found.append(ys)
    if steps.reverse:
        found.reverse()
    return carry, joined("scan", found)


def _binomial(
    steps: _Steps, carry: Any, slices: Slices, at: int, snapshots: int
) -> tuple[Any, Any]:
    """Keeps the carry for the first part, whose steps run again when the rest has been reversed.

    Then it has as many snapshots as there are now, its first carry among them; the rest has one
    less.
    """
    if slices.length < 2:
        return _run(steps, carry, slices, at)
    first = _first_part(slices.length, snapshots)
    rest = slices.length - first
    reverse = steps.reverse
    parts = slices.parts([rest, first])[::-1] if reverse else slices.parts([first, rest])

    def run(carry: Any, xs: Any) -> tuple[Any, Any]:
        these = Slices("scan", xs, first)
        return _binomial(steps, carry, these, at + rest if reverse else at, snapshots)

    carry, ys = checkpointed(run)(carry, parts[0].whole())
    after = at if reverse else at + first
    carry, more = _binomial(steps, carry, parts[1], after, max(snapshots - 1, 1))
    return carry, joined("scan", [more, ys] if reverse else [ys, more])


def _first_part(length: int, snapshots: int) -> int:
    """How many steps to run from a snapshot before the next one is taken."""
    repetitions = 1  # of each step, at most
    while math.comb(snapshots + repetitions, snapshots) < length:
        repetitions += 1
    rest = math.comb(snapshots - 1 + repetitions, repetitions)  # that the others are enough for
    shortest = math.comb(snapshots + repetitions - 2, snapshots) if repetitions > 1 else 0
    return min(max(length - rest, shortest, 1), length - 1)


def _run(steps: _Steps, init: Any, slices: Slices, at: int) -> tuple[Any, Any]:
    """Of slices of which the first is the one at this place in all."""
    f, reverse, loop = steps
    kept = Carry("scan", init, "f")
    if scan_capture.may_be_rolled(slices.length):
        found = scan_capture.rolled(
            kept, lambda carry, x: _pair(f(carry, x)), init, slices, reverse=reverse
        )
        if found is not None:
            return found
    if not slices.length:
        loop.begin(0)
        with torch.no_grad():
            _, y = _pair(f(init, slices.of_zeros()))
        return init, pytree.map_tensors(lambda leaf: leaf.new_empty(0, *leaf.shape), y)
    carry = init
    ys = []
    numbered = [*enumerate(slices.all(), at)]
    checked, begin = kept.checked, loop.begin
    for i, x in reversed(numbered) if reverse else numbered:
        begin(i)
        result = f(carry, x)
        carry, y = result if type(result) is tuple and len(result) == 2 else _pair(result)
        checked(carry)
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, stacked("scan", ys)


def _pair(result: Any) -> tuple[Any, Any]:
    if not (isinstance(result, tuple) and len(result) == 2):
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise OutputError(
            f"torchlayers: scan: f must return a pair, (carry, y), and returned {got}. Where there "
            "is no y, return (carry, None)."
        )
    return result
