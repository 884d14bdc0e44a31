"""scan: applies a function to the slices of tensors and carries state from one to the next."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, overload

import torch

from torchlayers.control_flow.checks import Carry
from torchlayers.control_flow.slices import Slices, concatenate_results, stack_results
from torchlayers.control_flow.traced import scan_capture
from torchlayers.core import pytree
from torchlayers.core.annotations import A, R, T
from torchlayers.core.errors import OutputError, TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.remat.checkpoint import checkpoint as checkpointed
from torchlayers.taps import loop_steps


@overload
def scan(
    f: Callable[[T, A], tuple[T, R]],
    init: T,
    xs: A,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: bool | int = False,
    snapshots: int | None = None,
) -> tuple[T, R]: ...
@overload
def scan(
    f: Callable[[T, None], tuple[T, R]],
    init: T,
    xs: None = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: bool | int = False,
    snapshots: int | None = None,
) -> tuple[T, R]: ...
@without_others
def scan(
    f: Callable[[T, Any], tuple[T, R]],
    init: T,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: bool | int = False,
    snapshots: int | None = None,
    **others: NoReturn,
) -> tuple[T, R]:
    """Computes ``carry, y = f(carry, x)`` for each x in xs and stacks the ys.

    Args:
        f: takes the carry and a slice of xs; returns the next carry, with the same structure,
            shapes and dtypes, and y: a tensor, a pytree of tensors, or None. It may capture
            tensors.
        init: the initial carry.
        xs: a tensor or a pytree of tensors, sliced along their first dimension; or None, in which
            case each x is None.
        length: the number of steps; required only if xs is None.
        reverse: whether to run from the last slice to the first. The ys are in the order of the xs.
        checkpoint: what is saved for reverse mode. False: everything that f's operators save. True
            or a number of steps: the carry once every that many steps (True: about the square root
            of the length); the steps in between are recomputed, by :func:`torchlayers.checkpoint`.
        snapshots: instead of checkpoint, how many carries to save at a time for reverse mode. They
            are placed to recompute the fewest steps, by Griewank and Walther's binomial schedule.
    Returns:
        The final carry, and the stacked ys. If there are no slices, f runs once on zeros to
        determine the shapes of the ys.
    Raises:
        TransformError: xs and length are both None, checkpoint is negative, or snapshots is less
            than 1 or given together with checkpoint.
        OutputError: f does not return a pair.
        DimensionError: the tensors in xs differ in length, or one has no dimensions.
        StructureError: f returns a carry with another structure, shape or dtype.
    Example:
        >>> def add(total, x):
        ...     return total + x, total
        >>> torchlayers.scan(add, torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
        (tensor(6.), tensor([0., 1., 3.]))
        >>> torchlayers.scan(lambda x, _: (2 * x, None), torch.tensor(1.0), length=10)
        (tensor(1024.), None)

    Source: jax.lax.scan; Griewank and Walther, "Algorithm 799: Revolve" (2000).
    """
    if others:
        refuse_keywords(scan, others)
    check_function("scan", "f", f)
    slices = Slices("scan", xs, length)
    if isinstance(checkpoint, int) and checkpoint < 0:
        raise TransformError(
            f"torchlayers: scan: checkpoint must be a bool or a number of steps, got {checkpoint}."
        )
    if snapshots is not None and (snapshots < 1 or checkpoint):
        raise TransformError(
            "torchlayers: scan: snapshots must be at least 1, and can't be combined with "
            f"checkpoint; got snapshots={snapshots}, checkpoint={checkpoint}."
        )
    loop = loop_steps.begin_loop("scan", slices.length)
    steps = _Steps(f, reverse, loop)
    with loop.running():
        if snapshots is not None:
            return _binomial(steps, init, slices, 0, snapshots)
        if checkpoint and slices.length:
            size = _root(slices.length) if checkpoint is True else checkpoint
            if (nested := _nested(steps, init, slices, size)) is not None:
                return nested
            full, rest = slices.length // size, slices.length % size
            return _in_parts(steps, init, slices.parts([size] * full + [rest] * (rest > 0)))
        return _run(steps, init, slices, 0)


def _root(length: Any) -> int:
    """About the square root; for a symbolic length, of the value it has during capture."""
    return math.isqrt(length.node.hint if isinstance(length, torch.SymInt) else length)


class _Steps(NamedTuple):
    """The step function, the direction, and the loop that taps are notified of."""

    f: Callable[[Any, Any], tuple[Any, Any]]
    reverse: bool
    loop: loop_steps.SilentLoop


def _nested(steps: _Steps, init: Any, slices: Slices, size: int) -> tuple[Any, Any] | None:
    """Captures a scan over scans of this size, then runs the rest; None if that is not possible.

    The reverse pass of a captured scan recomputes each of its steps, here an inner scan.
    """
    count, rest = slices.length // size, slices.length % size
    if not scan_capture.may_capture_scan(count):
        return None
    lengths = [size * count, rest]
    whole, others = slices.parts(lengths[::-1])[::-1] if steps.reverse else slices.parts(lengths)

    def run(carry: Any, xs: Any) -> tuple[Any, Any]:
        return _run(steps, carry, Slices("scan", xs, size), 0)

    captured = scan_capture.capture_scan(
        Carry("scan", init, "f"), run, init, whole.in_rows(count, size), reverse=steps.reverse
    )
    if captured is None:
        return None
    carry, ys = captured[0], pytree.map_tensors(lambda y: y.flatten(0, 1), captured[1])
    if not rest:
        return carry, ys
    carry, last = _run(steps, carry, others, 0)
    return carry, concatenate_results("scan", [last, ys] if steps.reverse else [ys, last])


def _in_parts(steps: _Steps, init: Any, parts: list[Slices]) -> tuple[Any, Any]:
    """Runs each part under checkpoint, which saves only its initial carry and its slices."""
    carry = init
    ys_of_parts: list[Any] = []
    firsts = [*itertools.accumulate((part.length for part in parts), initial=0)]
    numbered = [*zip(firsts[:-1], parts, strict=True)]
    for first, part in reversed(numbered) if steps.reverse else numbered:

        def run(
            carry: Any, xs: Any, first: int = first, length: int = part.length
        ) -> tuple[Any, Any]:
            return _run(steps, carry, Slices("scan", xs, length), first)

        carry, ys = checkpointed(run)(carry, part.whole())
        ys_of_parts.append(ys)
    if steps.reverse:
        ys_of_parts.reverse()
    return carry, concatenate_results("scan", ys_of_parts)


def _binomial(
    steps: _Steps, carry: Any, slices: Slices, at: int, snapshots: int
) -> tuple[Any, Any]:
    """Saves the carry before the first part, which is recomputed after the rest's reverse pass.

    By then the first part has all of the current snapshots again, including its initial carry; the
    rest has one fewer.
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
    return carry, concatenate_results("scan", [more, ys] if reverse else [ys, more])


def _first_part(length: int, snapshots: int) -> int:
    """Returns how many steps to run from one snapshot to the next."""
    repetitions = 1  # upper bound, for each step
    while math.comb(snapshots + repetitions, snapshots) < length:
        repetitions += 1
    rest = math.comb(snapshots - 1 + repetitions, repetitions)  # covered by the other snapshots
    shortest = math.comb(snapshots + repetitions - 2, snapshots) if repetitions > 1 else 0
    return min(max(length - rest, shortest, 1), length - 1)


def _run(steps: _Steps, init: Any, slices: Slices, at: int) -> tuple[Any, Any]:
    """Runs the steps over these slices, the first of which has index ``at`` among all slices."""
    f, reverse, loop = steps
    checks = Carry("scan", init, "f")
    if scan_capture.may_capture_scan(slices.length):
        captured = scan_capture.capture_scan(
            checks, lambda carry, x: _pair(f(carry, x)), init, slices, reverse=reverse
        )
        if captured is not None:
            return captured
    if not slices.length:
        loop.begin(0)
        with torch.no_grad():
            _, y = _pair(f(init, slices.of_zeros()))
        return init, pytree.map_tensors(lambda leaf: leaf.new_empty(0, *leaf.shape), y)
    carry = init
    ys = []
    checked, begin = checks.checked, loop.begin
    for i, x in slices.numbered(at, reverse=reverse):
        begin(i)
        result = f(carry, x)
        carry, y = result if type(result) is tuple and len(result) == 2 else _pair(result)
        checked(carry)
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, stack_results("scan", ys)


def _pair(result: Any) -> tuple[Any, Any]:
    if not (isinstance(result, tuple) and len(result) == 2):
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise OutputError(
            f"torchlayers: scan: f must return a pair (carry, y), but returned {got}. If there is "
            "no y, return (carry, None)."
        )
    return result
