"""Derivatives of any order along a curve, by jvps of jvps: for operators without a recurrence."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jvp import jvp

# The derivatives of the operands by position of operand and order: x, x', x'', ... of each.
_Curve = dict[tuple[int, int], Tensor]


def derivatives(
    func: Callable[..., tuple[Tensor, ...]], curves: Sequence[Sequence[Any]], order: int
) -> list[tuple[Tensor, ...]]:
    """The derivatives with respect to t, from 0 to `order`, of func(x(t), y(t), ...) at t = 0.

    Each jvp repeats all the work inside it, so the time grows like 2 ** order.

    Args:
        func: takes tensors, returns a tuple of floating-point or complex tensors.
        curves: for each argument its derivatives with respect to t, of orders 0 to `order`. None is
            zero; at least one is not, of order 1 or more.
    Returns:
        For each order the derivatives of the results.
    """
    curve: _Curve = {}
    for i, (value, *rest) in enumerate(curves):
        known = [n for n, derivative in enumerate(rest, 1) if derivative is not None]
        for n in range(1 + max(known, default=0)):
            derivative = curves[i][n]
            # Zeros below another derivative, which is their tangent.
            curve[i, n] = torch.zeros_like(value) if derivative is None else derivative

    last, lower = _push(func, curve, order)
    return [*lower, last]


def _push(func: Callable[..., tuple[Tensor, ...]], curve: _Curve, n: int) -> tuple[Any, list[Any]]:
    """The derivative of order n, and a list of those of lower orders."""
    if n == 0:
        return func(*(value for (_, k), value in curve.items() if k == 0)), []
    places = [(i, k) for i, k in curve if k < n and (i, k + 1) in curve]

    def below(*primals: Tensor) -> tuple[Any, list[Any]]:
        return _push(func, {**curve, **dict(zip(places, primals, strict=True))}, n - 1)

    primals = tuple(curve[place] for place in places)
    tangents = tuple(curve[i, k + 1] for i, k in places)
    last, slope, lower = jvp(below, primals, tangents, has_aux=True)
    return slope, [*lower, last]
