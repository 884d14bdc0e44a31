"""Errors that layers raise in C++ are of our classes from the start."""

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


@pytest.mark.parametrize("kind", [RuntimeError, errors.BatchedValueError])
def test_the_function_itself_can_catch_it(kind):
    def careful(x):
        try:
            return x * x.sum().item()
        except kind:
            return x * 2

    assert torch.equal(tl.vmap(careful)(X), X * 2)


def test_a_tensor_that_has_escaped():
    kept = []
    tl.vmap(lambda x: kept.append(x) or x)(X)
    with pytest.raises(errors.EscapedTensorError, match="Return it from the function"):
        kept[0] + 1


def in_an_autograd_function(x):
    class Asks(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x.sum().item()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    return Asks.apply(x)


@pytest.mark.parametrize(
    "func",
    [
        in_an_autograd_function,
        lambda x: tl.grad(lambda y: y.sum() * y.sum().item())(x),
        lambda x: tl.checkpoint(lambda y: y.sum() * y.sum().item())(x),
        lambda x: torch.ops.aten.item(x.sum()),
        lambda x: torch.tensor([x[0]]),
        lambda x: tl.compile(lambda y: y * y.sum().item())(x),
        lambda x: torch.utils.checkpoint.checkpoint(
            lambda y: y * y[0].item(), x, use_reentrant=False
        ),
    ],
)
def test_the_class_passes_all_that_is_in_between(func):
    with pytest.raises(errors.BatchedValueError):
        tl.vmap(func)(X)
    assert tl.current_stack() == ()


def test_the_class_passes_a_backward_on_torchs_engine():
    def asks(gradient):
        return gradient * gradient.sum().item()

    def loss(x):
        y = x.sin()
        y.register_hook(asks)
        (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return found

    with pytest.raises(errors.BatchedValueError):
        tl.vmap(lambda x: loss(x.clone().requires_grad_()))(X)
    assert tl.current_stack() == ()


def test_an_error_of_the_users_is_left_alone():
    mine = RuntimeError("mine")

    def raises(x):
        raise mine

    with pytest.raises(RuntimeError) as caught:
        tl.vmap(raises)(X)
    assert caught.value is mine
