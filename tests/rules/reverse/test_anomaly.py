"""Anomaly mode reports the user's line of the operator whose gradient is nan."""

import warnings

import pytest
import torch

import torchlayers as tl
from tests.support.calls import ambient
from tests.support.traced_steps import traced_steps

X = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
BATCH = torch.stack([X, X + 1])
pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")


def goes_wrong(x):
    y = x * 1
    z = y.sqrt()  # 0 / 0 in its gradient
    return (z * z * y).sum()


def who_pulled_back(call):
    with traced_steps() as events:
        result = call()
    return result, {event.op for event in events if event.step == "pull_back"}


def in_anomaly_mode(call):
    """The message of the error, and those of the warnings."""
    before = ambient()
    with (
        warnings.catch_warnings(record=True) as caught,
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError) as error,
    ):
        warnings.simplefilter("always")
        call()
    assert ambient() == before
    return str(error.value), "\n".join(str(each.message) for each in caught)


NESTS = {
    "grad": lambda f: tl.grad(f)(X),
    "vjp": lambda f: tl.vjp(f, X)[1](torch.ones((), dtype=X.dtype)),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(BATCH),
    "grad(grad)": lambda f: tl.grad(lambda x: tl.grad(f)(x).sum())(X),
    "grad(vmap(grad))": lambda f: tl.grad(lambda b: tl.vmap(tl.grad(f))(b).sum())(BATCH),
    "jvp(grad)": lambda f: tl.jvp(tl.grad(f), (X,), (X,)),
    "hessian": lambda f: tl.hessian(f)(X),
    "grad(vmap)": lambda f: tl.grad(lambda b: tl.vmap(f)(b).sum())(BATCH),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_the_line_of_the_operator_is_named(nest):
    error, warned = in_anomaly_mode(lambda: nest(lambda x: (x * 0).sqrt().sum() * x.sum()))
    assert "Function 'MulBackward0' returned nan values in its 0th output." in error
    assert "test_anomaly.py" in error
    assert "(x * 0).sqrt().sum() * x.sum()" in error
    assert "Error detected in MulBackward0. Traceback of forward call" in warned


def test_a_line_is_named_of_several():
    error, warned = in_anomaly_mode(lambda: tl.grad(goes_wrong)(X))
    assert "Function 'SqrtBackward0' returned nan values in its 0th output." in error
    assert "`z = y.sqrt()  # 0 / 0 in its gradient`" in error
    assert "z = y.sqrt()" in warned


def test_line_of_a_node_recorded_in_a_pass_is_that_of_the_forward():
    def first(x):
        return (x.abs() ** 1.5).sum()  # whose second derivative is 0 times infinity at 0

    error, warned = in_anomaly_mode(lambda: tl.grad(lambda x: tl.grad(first)(x).sum())(X))
    assert "whose second derivative is 0 times infinity" in error
    assert "Previous calculation was induced by" in warned
    assert "whose second derivative is 0 times infinity" in warned


@pytest.mark.parametrize(
    "f",
    [lambda x: (x.sin() * x).sum(), lambda x: torch.linalg.vector_norm(x)],
    ids=["rule", "torch"],
)
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_correct_gradients_are_unchanged(f, nest):
    expected, who = who_pulled_back(lambda: nest(f))
    with torch.autograd.detect_anomaly():
        found, who_then = who_pulled_back(lambda: nest(f))
    torch.testing.assert_close(found, expected)
    assert who_then == who == {"torchlayers"}


def test_infinity_is_no_anomaly_and_nan_need_not_be_looked_for():
    with torch.autograd.detect_anomaly():
        assert tl.grad(lambda x: x.sqrt().sum())(X)[0] == float("inf")
    with torch.autograd.detect_anomaly(check_nan=False):
        assert tl.grad(goes_wrong)(X)[0].isnan()


def test_an_error_of_a_node_names_the_line_too():
    def f(x):
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z.sum()

    error, warned = in_anomaly_mode(lambda: tl.grad(f)(X))
    assert "modified by an inplace operation" in error
    assert "y = x.exp()" in warned


def test_an_error_in_a_hook_names_the_line_of_its_tensor():
    def refuse(g):
        raise RuntimeError("by a hook")

    def f(x):
        y = x.exp()
        y.register_hook(refuse)
        return y.sum()

    error, warned = in_anomaly_mode(lambda: tl.grad(f)(X))
    assert error == "by a hook"
    assert "y = x.exp()" in warned


@pytest.mark.parametrize("size", [3, 256, 257])
def test_nan_is_found_in_large_and_small(size):
    x = torch.zeros(size)
    error, _ = in_anomaly_mode(lambda: tl.grad(lambda x: (x.sqrt() * x).sum())(x))
    assert "SqrtBackward0" in error
