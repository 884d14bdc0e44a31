"""map: applies a function to the slices of tensors, one at a time or in batches."""

from collections.abc import Callable
from typing import Any

import torch

from torchlayers.control_flow.checks import Carry
from torchlayers.control_flow.slices import Slices, concatenate_results, stack_results
from torchlayers.control_flow.traced import scan_capture
from torchlayers.core import pytree
from torchlayers.core.annotations import A, R
from torchlayers.core.function_checks import check_function
from torchlayers.taps import loop_steps
from torchlayers.transforms.vmap import vmap


def map(f: Callable[[A], R], xs: A, *, batch_size: int | None = None) -> R:
    """Applies f to each slice of xs and stacks the results.

    Args:
        f: takes a slice of xs; returns a tensor, or a pytree of tensors.
        xs: a tensor or a pytree of tensors, sliced along their first dimension.
        batch_size: how many slices :func:`vmap` runs at a time; None to loop over single slices.
    Returns:
        The results, stacked in a new first dimension.
    Raises:
        DimensionError: the tensors in xs differ in length, or one has no dimensions.
        ValueError: batch_size is not positive.
    Example:
        >>> torchlayers.map(lambda x: x.sum(), torch.ones(3, 2))
        tensor([2., 2., 2.])
        >>> torchlayers.map(lambda x: x.sum(), torch.ones(3, 2), batch_size=2)
        tensor([2., 2., 2.])

    Source: jax.lax.map.
    """
    check_function("map", "f", f)
    slices = Slices("map", xs, None)
    if batch_size is not None and slices.length:
        some = vmap(f, chunk_size=batch_size)
        captured = _rolled(f, slices, batch_size)
        return some(xs) if captured is None else captured
    if not slices.length:
        with torch.no_grad():
            y = f(slices.of_zeros())
        return pytree.map_tensors(lambda leaf: leaf.new_empty(0, *leaf.shape), y)
    if scan_capture.may_capture_scan(slices.length):
        checks = Carry("map", (), "f")
        captured = scan_capture.capture_scan(checks, lambda _, x: ((), f(x)), (), slices)
        if captured is not None:
            return captured[1]
    ys = []
    loop = loop_steps.begin_loop("map", slices.length)
    with loop.running():
        for i, x in enumerate(slices.all()):
            loop.begin(i)
            ys.append(f(x))
    return stack_results("map", ys)


def _rolled(f: Callable[[Any], Any], slices: Slices, batch_size: int) -> Any:
    """Captures a loop over the full batches, then runs the rest; None if that is not possible."""
    count, rest = slices.length // batch_size, slices.length % batch_size
    if not scan_capture.may_capture_scan(count):
        return None
    whole, others = slices.parts([batch_size * count, rest])
    batched = vmap(f)
    captured = scan_capture.capture_scan(
        Carry("map", (), "f"), lambda _, xs: ((), batched(xs)), (), whole.in_rows(count, batch_size)
    )
    if captured is None:
        return None
    ys = pytree.map_tensors(lambda y: y.flatten(0, 1), captured[1])
    return concatenate_results("map", [ys, batched(others.whole())]) if rest else ys
