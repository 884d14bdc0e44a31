"""Roots of functions of one number inside a bracket: bisection and brent. Undifferentiated."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry
from torchlayers.implicit.solution import Outcome, count_iterations

OnNumber = Callable[[Tensor], Tensor]


def bisection(
    f: OnNumber, low: Tensor, high: Tensor, tolerance: float, eps: float, limit: int
) -> Outcome:
    """Halves the bracket. The residual is its width, relative to 1 + abs(x); nan without a change
    of sign."""
    f_low, f_high = f(low), f(high)
    # An end that is a root is a bracket of width zero.
    low, high = torch.where(f_high == 0, high, low), torch.where(f_low == 0, low, high)
    sign = f_low.sign()
    is_bracket = (f_low == 0) | (f_high == 0) | (sign * f_high.sign() < 0)

    def body(i: Any, carry: Carry) -> Carry:
        low, high = carry
        middle = low + 0.5 * (high - low)
        value = f(middle)
        is_left = value.sign() == sign
        return (
            torch.where(is_left | (value == 0), middle, low),
            torch.where(is_left & (value != 0), high, middle),
        )

    def goes_on(carry: Carry) -> Tensor:
        return is_bracket & (_width(*carry) > max(tolerance, eps))

    (low, high), iterations = count_iterations(goes_on, body, (low, high), limit)
    residual = torch.where(is_bracket, _width(low, high), torch.nan)
    return Outcome(low + 0.5 * (high - low), iterations, residual)


def brent(
    f: OnNumber, low: Tensor, high: Tensor, tolerance: float, eps: float, limit: int
) -> Outcome:
    """Inverse quadratic interpolation and secants, with bisection where they are slow (Brent 1973).

    b is the best point, c on the other side of the root, a the best before; step and before are the
    last two steps. The residual is as for bisection.
    """
    f_low, f_high = f(low), f(high)
    is_bracket = (f_low == 0) | (f_high == 0) | (f_low.sign() * f_high.sign() < 0)
    width = high - low

    def ordered(carry: Carry) -> Carry:
        """Makes b the better one of the two ends of the bracket."""
        a, fa, b, fb, c, fc, step, before = carry
        # The bracket is between b and c: if they have one sign, a has the other.
        same = fb.sign() == fc.sign()
        c, fc = torch.where(same, a, c), torch.where(same, fa, fc)
        step, before = torch.where(same, b - a, step), torch.where(same, b - a, before)
        worse = fc.abs() < fb.abs()
        a, fa = torch.where(worse, b, a), torch.where(worse, fb, fa)
        b, c = torch.where(worse, c, b), torch.where(worse, b, c)
        fb, fc = torch.where(worse, fc, fb), torch.where(worse, fb, fc)
        a, fa = torch.where(worse, c, a), torch.where(worse, fc, fa)
        return a, fa, b, fb, c, fc, step, before

    def body(i: Any, carry: Carry) -> Carry:
        a, fa, b, fb, c, fc, step, before = carry
        least = (0.5 * max(tolerance, eps) * (1 + b.abs())).to(b.dtype)
        half = 0.5 * (c - b)
        s, q, r = fb / fa, fa / fc, fb / fc
        is_secant = a == c
        p = torch.where(is_secant, 2 * half * s, s * (2 * half * q * (q - r) - (b - a) * (r - 1)))
        d = torch.where(is_secant, 1 - s, (q - 1) * (r - 1) * (s - 1))
        d, p = torch.where(p > 0, -d, d), p.abs()
        bound = torch.minimum(3 * half * d - (least * d).abs(), (before * d).abs())
        is_quick = (before.abs() >= least) & (fa.abs() > fb.abs()) & (2 * p < bound)
        new_before = torch.where(is_quick, step, half)
        new_step = torch.where(is_quick, p / d, half)
        moved = torch.where(new_step.abs() > least, new_step, torch.where(half > 0, least, -least))
        at = b + moved
        return ordered((b, fb, at, f(at), c, fc, new_step, new_before))

    def goes_on(carry: Carry) -> Tensor:
        return is_bracket & (carry[3] != 0) & (_width(carry[2], carry[4]) > max(tolerance, eps))

    start = ordered((low, f_low, high, f_high, low, f_low, width, width))
    last, iterations = count_iterations(goes_on, body, start, limit)
    _, _, b, fb, c, fc, *_ = last
    residual = torch.where(fb == 0, 0.0, _width(b, c))
    residual = torch.where(is_bracket & fb.isfinite() & fc.isfinite(), residual, torch.nan)
    return Outcome(b, iterations, residual)


def _width(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).abs() / (1 + torch.minimum(low.abs(), high.abs()))
