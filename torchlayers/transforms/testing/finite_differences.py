"""Derivatives along a direction by central differences, and where they can't be had."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]

# A step for each precision of the results, and a smaller one for points close to a kink. The larger
# one balances the error of the extrapolated difference, h^4, with rounding, eps / h.
_STEPS = {torch.float64: (1e-3, 1e-5), torch.float32: (3e-2, 3e-3)}
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
_COARSE_STEPS, _COARSE_TOLERANCE = (0.25, 0.06), 0.2


def real(tensor: Tensor) -> Tensor:
    """The tensor in double precision; real and imaginary parts in a last dimension."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.to(torch.float64)


def precision(results: Sequence[Tensor]) -> torch.dtype:
    """The real dtype of the least precise of the results."""
    dtypes = [tensor.real.dtype if tensor.is_complex() else tensor.dtype for tensor in results]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def steps_for(dtype: torch.dtype) -> tuple[float, ...]:
    return _STEPS.get(dtype, _COARSE_STEPS)


def tolerance_for(dtype: torch.dtype) -> float:
    return _TOLERANCES.get(dtype, _COARSE_TOLERANCE)


class Slope(NamedTuple):
    """The derivative of one result along a direction, elementwise, as real numbers.

    Attributes:
        lower, upper: equal where the function is differentiable; at a kink, the smaller and the
            larger one of the derivatives of the two sides.
        noise: a bound on the rounding errors in them.
        is_smooth: False at a kink or a jump, or where the step is too large to tell.
        is_defined: False at a jump, and where the function is infinite or nan at the point and on
            both sides.
        is_finite: False where it is infinite or nan at some of them.
    """

    lower: Tensor
    upper: Tensor
    noise: Tensor
    is_smooth: Tensor
    is_defined: Tensor
    is_finite: Tensor


def slopes(
    f: Function,
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor],
    step: float,
    tolerance: float,
    dtype: torch.dtype,
) -> list[Slope]:
    """The derivatives of f's results along the tangents, by differences over step and step / 2.

    dtype is the one that f computes in. Where the differences of the two sides do not approach each
    other as the step is halved, and are further apart than the tolerance, there is a kink. Where
    they grow, there is a jump.
    """

    def evaluate_at(distance: float) -> list[Tensor]:
        moved = [x + distance * t for x, t in zip(primals, tangents, strict=True)]
        return [*f(*moved)]

    here = evaluate_at(0.0)
    eps = torch.finfo(dtype).eps
    places = [here, *(evaluate_at(distance) for distance in (step, -step, step / 2, -step / 2))]
    return [
        _slope(torch.stack([real(y) for y in values]), step, tolerance, eps)
        for values in zip(*places, strict=True)
    ]


def _slope(values: Tensor, step: float, tolerance: float, eps: float) -> Slope:
    y, after, before, half_after, half_before = values
    right, left = (after - y) / step, (y - before) / step
    half_right, half_left = 2 * (half_after - y) / step, 2 * (y - half_before) / step
    central = (2 * (half_right + half_left) - (right + left) / 2) / 3
    # One-sided differences of twice the order: at a kink the curvature does not count.
    sides = torch.stack([2 * half_right - right, 2 * half_left - left])
    noise = 16 * eps / step * values.abs().amax(0)
    allowed = tolerance * (1 + torch.maximum(half_right.abs(), half_left.abs())) + noise
    gap, half_gap = (right - left).abs(), (half_right - half_left).abs()
    is_kink = (half_gap > 0.75 * gap) & (half_gap > allowed)
    is_jump = torch.zeros_like(is_kink)
    for side, half_side in ((right, half_right), (left, half_left)):
        doubles = (half_side - 2 * side).abs() < 0.1 * half_side.abs()
        is_jump |= doubles & (half_side.abs() > allowed)
    is_finite = values.isfinite().all(0)
    return Slope(
        lower=torch.where(is_kink, sides.amin(0), central),
        upper=torch.where(is_kink, sides.amax(0), central),
        noise=noise,
        is_smooth=~(is_kink | is_jump),
        is_defined=values.isfinite().any(0) & ~is_jump,
        is_finite=is_finite | ~values.isfinite().any(0),
    )
