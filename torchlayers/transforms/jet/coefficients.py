"""Recurrences of the most common functions, on lists of coefficients.

They compute the same as series (`series.py`), whose coefficients are computed when they are read.
Here all orders are known, so each one takes as few operators as possible, and no Python in between:
for a small network that is most of the time.

In a list, position k holds the coefficient k of the series, and None is zero.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
