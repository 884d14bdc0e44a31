"""jet against Taylor coefficients that are known, up to high orders."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torchlayers as tl

ORDER = 9
X = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64)
ONE = torch.ones_like(X)
LINE = [ONE] + [None] * (ORDER - 1)  # x + t

# The n-th derivative.
FUNCTIONS = {
    "exp": (torch.exp, lambda x, n: x.exp()),
    "sin": (torch.sin, lambda x, n: (x + n * math.pi / 2).sin()),
    "cos": (torch.cos, lambda x, n: (x + n * math.pi / 2).cos()),
    "cosh": (torch.cosh, lambda x, n: x.sinh() if n % 2 else x.cosh()),
    "log of a square": (
        lambda x: (x * x).log(),
        lambda x, n: 2 * (-1) ** (n + 1) * math.factorial(n - 1) / x**n,
    ),
    "reciprocal": (torch.reciprocal, lambda x, n: (-1) ** n * math.factorial(n) / x ** (n + 1)),
    "sqrt": (
        lambda x: (x + 2).sqrt(),
        lambda x, n: math.prod(0.5 - i for i in range(n)) * (x + 2) ** (0.5 - n),
    ),
    "power of 5": (
        lambda x: x**5,
        lambda x, n: math.perm(5, n) * x ** (5 - n) if n <= 5 else torch.zeros_like(x),
    ),
    "product": (lambda x: x * x.exp(), lambda x, n: (x + n) * x.exp()),
    "quotient": (
        lambda x: x / (1 - x),
        lambda x, n: math.factorial(n) / (1 - x) ** (n + 1),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_along_a_line(name):
    f, derivative = FUNCTIONS[name]
    value, found = tl.jet(f, (X,), (LINE,))
    assert_close(value, f(X))
    assert_close(found, [derivative(X, n) for n in range(1, ORDER + 1)], rtol=1e-8, atol=1e-8)


# Two ways to compute the same.
PAIRS = {
    "logaddexp": (lambda x: torch.logaddexp(x, 2 * x), lambda x: x + F.softplus(x)),
    "logaddexp2": (
        lambda x: torch.logaddexp2(x, 2 * x),
        lambda x: x + F.softplus(x * math.log(2)) / math.log(2),
    ),
    "cumprod": (lambda x: x.cumprod(0)[-1], lambda x: math.prod(x.unbind())),
}


@pytest.mark.parametrize("name", PAIRS)
def test_derivatives_of_a_function_computed_in_two_ways(name):
    x = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    line = [torch.ones_like(x), None, None, None]
    one, other = (tl.jet(f, (x,), (line,))[1] for f in PAIRS[name])
    assert_close(one, other)


def test_derivatives_of_a_power_at_zero():
    zero = torch.zeros((), dtype=torch.float64)
    _, found = tl.jet(lambda x: x**3, (zero,), ([zero + 1, None, None, None],))
    assert_close(torch.stack(found), torch.tensor([0.0, 0, 6, 0], dtype=torch.float64))
    _, found = tl.jet(lambda x: x**2.5, (zero,), ([zero + 1, None],))
    assert_close(torch.stack(found), torch.zeros(2, dtype=torch.float64))


def test_a_series_holds_derivatives_not_coefficients():
    """Of t^2 / 2 the second derivative is 1."""
    x = torch.zeros((), dtype=torch.float64)
    _, found = tl.jet(lambda x: x * 3, (x,), ([None, x + 1],))
    assert_close(torch.stack(found), torch.tensor([0.0, 3.0], dtype=torch.float64))


def test_a_curve_through_two_functions():
    """exp along sin(t) is exp(sin(t)), whose derivatives at 0 are 1, 1, 1, 0, -3, -8."""
    zero = torch.zeros((), dtype=torch.float64)
    sine, curve = tl.jet(torch.sin, (zero,), ([zero + 1, *[None] * 5],))
    value, found = tl.jet(torch.exp, (sine,), (curve,))
    assert_close(value, zero + 1)
    assert_close(torch.stack(found), torch.tensor([1.0, 1, 0, -3, -8, -3], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_derivatives_of_several_primals(shape):
    x = torch.rand(shape, dtype=torch.float64)
    v = torch.rand(shape, dtype=torch.float64)
    _, (first, second) = tl.jet(torch.mul, (x, v), ([v, None], [x, None]))
    assert_close(first, v * v + x * x)
    assert_close(second, 2 * v * x)
