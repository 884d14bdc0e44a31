"""scan: a function over the slices of tensors, with what it carries from one to the next."""

from collections.abc import Callable
from typing import Any

import torch

from torchlayers import tree
from torchlayers.control_flow.slices import Slices, stacked
from torchlayers.control_flow.structure import Carry, check_function
from torchlayers.errors import OutputError


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
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
    Returns:
        The last carry, and the ys. Where there are no slices, f runs once on zeros to tell their
        shapes.
    Raises:
        TransformError: xs is None and so is length.
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

    Source: jax.lax.scan.
    """
    check_function("scan", "f", f)
    slices = Slices("scan", xs, length)
    kept = Carry("scan", init, "f")
    if not slices.length:
        with torch.no_grad():
            _, y = _pair(f(init, slices.of_zeros()))
        return init, tree.map_tensors(lambda leaf: leaf.new_empty(0, *leaf.shape), y)
    carry = init
    ys = []
    for x in reversed(slices.all()) if reverse else slices.all():
        carry, y = _pair(f(carry, x))
        kept.leaves(carry)
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
