"""autograd_function_apply, and forward and setup_context as one."""

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.autograd_function import (
    autograd_function_apply,
    autograd_function_forward_rewritten,
)
from torchlayers.errors import FunctionError

X = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
Y = torch.tensor([1.5, -1.0, 3.0], dtype=torch.float64)


def multiplied(x, y, **options):
    """Returns x * y; with a mask for x alone, it has a derivative only by x."""
    return autograd_function_apply(
        lambda ctx, x, y: (x * y, [x, y, "kept"]),
        lambda ctx, g, x, y, kept: (g * y, g * x)[: sum(options.get("args_tensor_mask", (1, 1)))],
        x,
        y,
        **options,
    )


TRANSFORMS = {
    "plain": lambda tf, f: f(X, Y),
    "grad": lambda tf, f: tf.grad(lambda x, y: f(x, y).sum(), (0, 1))(X, Y),
    "vjp": lambda tf, f: tf.vjp(f, X, Y)[1](X),
    "vmap": lambda tf, f: tf.vmap(f)(X, Y),
    "vmap of one": lambda tf, f: tf.vmap(f, (0, None))(X, Y),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(f, (0, 1)))(X, Y),
    "grad(vmap)": lambda tf, f: tf.grad(lambda x: tf.vmap(f)(x, Y).sum())(X),
    "grad(grad)": lambda tf, f: tf.vmap(tf.grad(lambda x: tf.grad(f)(x * x, x)))(X),
    "functionalize": lambda tf, f: tf.functionalize(f)(X, Y),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_under_every_transform(transform):
    before = ambient()
    expected = transform(torch.func, torch.mul)
    torch.testing.assert_close(transform(tl, multiplied), expected)
    assert ambient() == before


def test_plain_autograd():
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    gradients = torch.autograd.grad(multiplied(x, y).sum(), (x, y))
    torch.testing.assert_close(gradients, (Y, X))


def test_masked_out_inputs_have_no_gradient():
    def f(x, y):
        return multiplied(x, y, args_tensor_mask=[True]).sum()

    torch.testing.assert_close(tl.grad(f, (0, 1))(X, Y), (Y, torch.zeros_like(Y)))


def test_outputs_without_gradient():
    def f(x):
        values, sign = autograd_function_apply(
            lambda ctx, x: ((x * x, x.sign()), [x]),
            lambda ctx, g, g_sign, x: 2 * g * x,
            x,
            non_differentiable_idx=[1],
        )
        return (values * sign).sum()

    torch.testing.assert_close(tl.grad(f)(-X), 2 * X)


def returning(gradients):
    """Returns a function for x * y whose backward returns these gradients."""

    def forward(ctx, x, y):
        return x * y, [x, y]

    def backward(ctx, g, x, y):
        return gradients

    return lambda x, y, **options: autograd_function_apply(forward, backward, x, y, **options)


WRONG_COUNTS = {
    "none": ((), {}, "returned 0 gradients for 2 inputs"),
    "too few": ((X,), {}, "returned 1 gradient for 2 inputs"),
    "a bare one": (X, {}, "returned 1 gradient for 2 inputs"),
    "too many": ([X, X, X], {}, "returned 3 gradients for 2 inputs"),
    "too many for the mask": (
        (X, X),
        {"args_tensor_mask": [True]},
        "returned 2 gradients for 1 input",
    ),
}


@pytest.mark.parametrize("name", WRONG_COUNTS)
@pytest.mark.parametrize("transform", ["plain autograd", "grad", "vmap(grad)", "grad(vmap)"])
def test_a_wrong_number_of_gradients_is_an_error(transform, name):
    gradients, options, message = WRONG_COUNTS[name]

    def f(x):
        return returning(gradients)(x, Y, **options)

    before = ambient()
    with pytest.raises(FunctionError) as caught:
        if transform == "plain autograd":
            f(X.clone().requires_grad_()).sum().backward()
        elif transform == "vmap(grad)":
            tl.vmap(tl.grad(lambda x: f(x).sum()))(X.expand(2, 3))
        elif transform == "grad(vmap)":
            tl.grad(lambda x: tl.vmap(f)(x).sum())(X.expand(2, 3))
        else:
            tl.grad(lambda x: f(x).sum())(X)
    assert str(caught.value) == (
        f"torchlayers: autograd_function_apply: backward {message} of forward that "
        "args_tensor_mask chooses. Return one for each, or None for no gradient."
    )
    assert ambient() == before


def test_extra_gradients_that_are_none_are_accepted():
    """torch accepts them from a Function, too."""

    def f(x):
        return returning((X, None, None))(x, Y).sum()

    torch.testing.assert_close(tl.grad(f)(X), X)


def test_forward_rewritten_combines_forward_and_setup_context():
    kept = []

    def setup(ctx, inputs, output):
        kept.append((ctx, inputs, output))

    forward = autograd_function_forward_rewritten(lambda x, n=1, *, m=0: x + n + m, setup)
    assert forward("ctx", 1, 2, m=3) == 6
    assert kept == [("ctx", (1, 2), 6)]
