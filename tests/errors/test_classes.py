"""Errors that layers raise in C++ are of our classes when they leave a transform."""

import pytest
import torch

import torchlayers as tl
from torchlayers import errors

X = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("func", "kind"),
    [
        (lambda x: x.sum().item(), errors.BatchedValueError),
        (lambda x: x if x.sum() > 0 else -x, errors.BatchedValueError),
        (lambda x: torch.allclose(x, x), errors.BatchedValueError),
        (lambda x: x.nonzero(), errors.BatchedOperatorError),
        (lambda x: x[x > 0], errors.BatchedOperatorError),
        (lambda x: X[0].add_(x), errors.InPlaceError),
        (lambda x: tl.grad(lambda y: X.add_(y).sum())(x), errors.InPlaceError),
        (lambda x: x + torch.rand(2), errors.RandomnessError),
    ],
)
def test_the_class_is_that_of_the_mistake(func, kind):
    with pytest.raises(RuntimeError) as caught:
        tl.vmap(func)(X)
    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.TransformError)
    assert "torchlayers: " in str(caught.value) and "test_classes.py:" in str(caught.value)
    assert tl.current_stack() == ()


def test_the_traceback_still_ends_in_the_users_line():
    def asks(x):
        return x.sum().item()

    with pytest.raises(errors.BatchedValueError) as caught:
        tl.vmap(asks)(X)
    assert "asks" in [entry.name for entry in caught.traceback]


def test_inside_the_function_it_is_still_a_runtime_error():
    def careful(x):
        try:
            return x * x.sum().item()
        except RuntimeError:
            return x * 2

    assert torch.equal(tl.vmap(careful)(X), X * 2)


def test_an_error_of_the_users_is_left_alone():
    mine = RuntimeError("mine")

    def raises(x):
        raise mine

    with pytest.raises(RuntimeError) as caught:
        tl.vmap(raises)(X)
    assert caught.value is mine
