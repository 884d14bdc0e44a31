"""The rules of jet that C++ carries out (csrc/layers/taylor.h)."""

import sys

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

X = torch.tensor([[0.3, 0.8], [0.5, 1.1]], dtype=torch.float64)
Y = torch.tensor([[1.2, 0.4], [0.7, 0.9]], dtype=torch.float64)
MASK = torch.tensor([[True, False], [False, True]])

FUNCTIONS = {
    "product": lambda x: x * x.T,
    "product with a constant": lambda x: x * Y,
    "product with a number": lambda x: 3 * x,
    "square": lambda x: x * x,
    "product that broadcasts": lambda x: x * x[0],
    "quotient": lambda x: x / x.T,
    "quotient by a constant": lambda x: x / Y,
    "quotient of a constant": lambda x: Y / x,
    "sum": lambda x: torch.add(x, x.T, alpha=3),
    "sum with a constant": lambda x: x + Y[0],
    "sum that broadcasts": lambda x: x[0] + x[:, :1],
    "difference": lambda x: 1 - x,
    "linear": lambda x: x.sum(0),
    "bilinear": lambda x: x @ x.T,
    "view": lambda x: x.T.reshape(4),
    "where": lambda x: torch.where(MASK, x, x.T * 2),
    "kinks": lambda x: F.relu(x - 0.6) + (x - 0.6).abs(),
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "softplus": F.softplus,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "two arguments": lambda x: torch.atan2(x, x.T + 1),
    "steps": lambda x: x.round() + x,
    "other dtypes": lambda x: x.float() * x,
}


def along_line(function, order, x=X):
    return tl.jet(function, (x,), ([torch.ones_like(x), 0.5 * Y, *[None] * order][:order],))


def nested(function, order, x=X):
    """The same by jvps of jvps, of the function along the curve."""

    def curve(t):
        return function(x + t * torch.ones_like(x) + (t * t * 0.25 * Y if order > 1 else 0))

    results = []
    for _ in range(order + 1):
        results.append(curve(torch.zeros((), dtype=torch.float64)))
        curve = _pushed(curve)
    return results


def _pushed(curve):
    return lambda t: tl.jvp(curve, (t,), (torch.ones_like(t),))[1]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_agrees_with_nested_jvps(name, order):
    value, series = along_line(FUNCTIONS[name], order)
    is_single = name == "other dtypes"
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if is_single else {"rtol": 1e-9, "atol": 1e-9}
    for ours, expected in zip([value, *series], nested(FUNCTIONS[name], order), strict=True):
        torch.testing.assert_close(ours, expected, **tolerance)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "two arguments"])
def test_a_step_composes_with_other_transforms(name):
    def second(x):
        return along_line(FUNCTIONS[name], 2, x)[1][1].sum()

    batch = torch.stack([X, X.T + 0.1])
    torch.testing.assert_close(tl.vmap(second)(batch), torch.stack([*map(second, batch)]))
    moved = tl.jvp(second, (X,), (Y,))[1]
    torch.testing.assert_close((tl.grad(second)(X) * Y).sum(), moved)


def test_common_operators_never_enter_python():
    """Neither the rules nor the layer's methods are called."""
    called = []

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and ("jet/rules" in name or "layers/layer.py" in name):
            called.append(frame.f_code.co_name)

    def f(x):
        sys.setprofile(note)
        try:
            y = torch.where(MASK, torch.tanh(x * Y + 1) / x, F.relu(x))
            return (y.exp() @ x).view(4)
        finally:
            sys.setprofile(None)

    along_line(f, 3)
    assert called == []


def test_complex_coefficients():
    z = torch.complex(X, Y)

    def f(z):
        return torch.tanh(z * z) / (1 + z.exp())

    value, series = tl.jet(f, (z,), ([torch.ones_like(z), None, None],))
    g = f
    for ours in [value, *series]:
        torch.testing.assert_close(ours, g(z))
        g = _pushed(g)


def test_derivatives_of_a_constant_part_are_zero():
    value, series = tl.jet(lambda x: (x > 0.5) * 1.0 + 0 * x.detach(), (X,), ([X, None],))
    assert all(not term.any() for term in series)
    assert torch.equal(value, (X > 0.5) * 1.0)
