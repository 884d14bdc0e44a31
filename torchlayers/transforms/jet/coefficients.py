"""Recurrences of the most common functions, on lists of coefficients.

They compute the same as series (`series.py`), whose coefficients are computed when they are read.
Here all orders are known, so each one takes as few operators as possible, and no Python in between:
for a small network that is most of the time.

In a list, position k holds the coefficient k of the series, and None is zero.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.layers.slopes import slope_at

Coefficients = list[Any]


def accumulated(total: Any, a: Any, b: Any, factor: float = 1) -> Any:
    """total + factor * a * b, where None is zero."""
    if a is None or b is None:
        return total
    if total is not None:
        return torch.addcmul(total, a, b, value=factor)
    if factor == -1:
        return -(a * b)
    return a * b if factor == 1 else a * b * factor


def product(a: Sequence[Any], b: Sequence[Any], first: Tensor) -> Coefficients:
    """The product of two series, whose coefficient 0 is known."""
    coefficients: Coefficients = [first]
    for k in range(1, len(a)):
        total = None
        for i in range(k + 1):
            total = accumulated(total, a[i], b[k - i])
        coefficients.append(total)
    return coefficients


def square(a: Sequence[Any], first: Tensor) -> Coefficients:
    coefficients: Coefficients = [first]
    for k in range(1, len(a)):
        half = _half_of_square(a, k)
        coefficients.append(None if half is None else half + half)
    return coefficients


def _half_of_square(a: Sequence[Any], k: int) -> Any:
    """Half of the coefficient k of a's square."""
    total = None
    for i in range((k + 1) // 2):
        total = accumulated(total, a[i], a[k - i])
    return accumulated(total, a[k // 2], a[k // 2], 0.5) if k % 2 == 0 else total


def quadratic(
    first: Tensor,
    terms: tuple[float, float, float],
    x: Sequence[Any],
    times_slope: Callable[[Tensor], Tensor] | None = None,
) -> Coefficients:
    """y with y' = s x', where s = a + b y + c y^2 and (a, b, c) are the terms.

    Args:
        times_slope: multiplies by the coefficient 0 of s, if there is an operator for it.
    """
    a, b, c = terms
    if times_slope is None:
        times_slope = slope_at(first, a, b, c).mul
    y: Coefficients = [first]
    s: Coefficients = [None]  # from coefficient 1 on, divided by `scale`
    scale = b if not c else 1 if b else 2 * c
    for k in range(1, len(x)):
        total = None if x[k] is None else times_slope(x[k])
        for j in range(k - 1, 0, -1):
            total = accumulated(total, x[j], s[k - j], scale * j / k)
        y.append(total)
        if k + 1 < len(x):
            half = _half_of_square(y, k) if c else y[k]
            if b and c and half is not None:  # and so y[k] is not, with the same terms
                half = torch.add(y[k] if b == 1 else y[k] * b, half, alpha=2 * c)
            s.append(half)
    return y


def logarithm(first: Tensor, x: Sequence[Any], factor: float, shift: float) -> Coefficients:
    """y with (x + shift) y' = factor * x'."""
    y: Coefficients = [first]
    divisor = x[0] + shift if shift else x[0]
    for k in range(1, len(x)):
        total = x[k] if factor == 1 or x[k] is None else x[k] * factor
        for j in range(1, k):
            total = accumulated(total, y[j], x[k - j], -j / k)
        y.append(None if total is None else total / divisor)
    return y


def square_root(first: Tensor, x: Sequence[Any]) -> Coefficients:
    """y with y^2 = x."""
    y: Coefficients = [first]
    divisor = first + first
    for k in range(1, len(x)):
        total = x[k]
        for i in range(1, (k + 1) // 2):
            total = accumulated(total, y[i], y[k - i], -2)
        if k % 2 == 0:
            total = accumulated(total, y[k // 2], y[k // 2], -1)
        y.append(None if total is None else total / divisor)
    return y


def sine_and_cosine(
    sine: Tensor, cosine: Tensor, sign: float, x: Sequence[Any]
) -> list[Coefficients]:
    """s and c with s' = c x' and c' = sign * s x': hyperbolic functions with a positive sign."""
    s: Coefficients = [sine]
    c: Coefficients = [cosine]
    for k in range(1, len(x)):
        up = down = None
        for j in range(k, 0, -1):
            up = accumulated(up, x[j], c[k - j], j / k)
            down = accumulated(down, x[j], s[k - j], sign * j / k)
        s.append(up)
        c.append(down)
    return [s, c]
