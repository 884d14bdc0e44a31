"""Values at which rounding, overflow and comparisons matter."""

import itertools

import torch
from torch import Tensor


def special(dtype: torch.dtype) -> list[float]:
    """nan, and with both signs: zero, denormals, ordinary, tiny and huge numbers, and infinity."""
    info = torch.finfo(dtype)
    least = float(torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)))
    far = 90.0 if dtype == torch.float32 else 712.0  # exp overflows, or is denormal
    magnitudes = [0.0, least, info.tiny / 8, info.eps / 4, 0.3, 0.5, 1.0, 2.0, 3.0, 20.5, far]
    magnitudes.append(float("inf"))
    if dtype == torch.float32:  # squares underflow and overflow here, and do not in float64
        magnitudes += [info.tiny**0.5 / 4, info.max**0.5 * 4]
    return [float("nan"), *(sign * x for x in magnitudes for sign in (1, -1))]


def few(dtype: torch.dtype, count: int) -> list[float]:
    """A subset small enough for all combinations of `count` operands."""
    info = torch.finfo(dtype)
    nan, inf = float("nan"), float("inf")
    all_of_them = [nan, 0.0, 1.0, inf, -1.0, -inf, -0.0, info.tiny / 8, 2.5, -0.3]
    return all_of_them[: {3: 10, 4: 6}.get(count, 4)]


def combinations(flags: tuple[bool, ...], dtype: torch.dtype) -> list[Tensor]:
    """A tensor for each operand; together they contain all combinations."""
    count = sum(not flag for flag in flags)
    values = special(dtype) if count <= 2 else few(dtype, count)
    choices = [[True, False] if flag else values for flag in flags]
    columns = zip(*itertools.product(*choices), strict=True)
    return [
        torch.tensor(column, dtype=torch.bool if flag else dtype)
        for column, flag in zip(columns, flags, strict=True)
    ]


def orders(dtype: torch.dtype) -> list[Tensor]:
    """Tensors to select from: with ties, nan, infinities and zeros of both signs."""
    nan, inf = float("nan"), float("inf")
    least = torch.finfo(dtype).tiny / 8
    rows = [
        [nan, 1.0, 1.0],
        [1.0, nan, 2.0, nan],
        [nan, nan, nan],
        [nan, inf, -inf, inf],
        [inf, 1.0, inf],
        [-inf, 1.0, -inf],
        [0.0, -0.0, 0.0],
        [-0.0, 0.0, -least, least, least],
        [1.0, 1.0, 1.0, 1.0],
        [3.0, 2.0, 3.0, 2.0, 3.0],
        nan,
        1.0,
    ]
    return [torch.tensor(row, dtype=dtype) for row in rows]
