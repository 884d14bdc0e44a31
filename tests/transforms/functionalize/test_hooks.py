"""Hooks that are registered inside functionalize, where autograd records the values of tensors."""

import pytest
import torch
from torch import nn

import torchlayers as tl

X = torch.tensor([0.7, 0.4, 0.9, 0.5], dtype=torch.float64)
calls = []


def double(g):
    calls.append(tuple(g.shape))
    return 2 * g


def of_a_tensor(x):
    y = x.sin()
    y.register_hook(double)
    return y * x


def of_a_view(x):
    y = x.sin()
    part = y.view(2, 2)
    part.register_hook(double)
    return part.reshape(4) * x


def of_a_tensor_that_was_written_to(x):
    y = x.sin()
    y.view(2, 2)[0].mul_(x[:2])
    y.register_hook(double)
    return y * x


MODULE = nn.Linear(4, 4, dtype=torch.float64)
MODULE.register_full_backward_hook(lambda module, inputs, outputs: (double(inputs[0]),))


def of_a_module(x):
    return MODULE(x.sin()).sin()


def of_a_gradient_inside(x):
    shift = torch.zeros_like(x).requires_grad_()
    y = (x + shift).sin()
    y.register_hook(double)
    return torch.autograd.grad(y.sum(), shift, create_graph=True)[0] * x


def plain_gradient(f):
    def of(x):
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(f(x).sum(), x)[0]

    return of


@pytest.mark.parametrize("gradient", [plain_gradient, lambda f: tl.grad(lambda x: f(x).sum())])
@pytest.mark.parametrize(
    "f", [of_a_tensor, of_a_view, of_a_tensor_that_was_written_to, of_a_module]
)
def test_a_hook_is_called_once_with_the_gradient(f, gradient):
    calls.clear()
    expected = gradient(f)(X)
    expected_calls = [*calls]
    assert expected_calls
    calls.clear()
    torch.testing.assert_close(gradient(tl.functionalize(f))(X), expected)
    assert calls == expected_calls


def test_a_hook_on_a_gradient_computed_inside():
    calls.clear()
    torch.testing.assert_close(tl.functionalize(of_a_gradient_inside)(X), 2 * X.cos() * X)
    assert calls == [(4,)]


def test_hooks_after_accumulation_are_refused():
    def f(x):
        leaf = torch.zeros(4).requires_grad_()
        leaf.register_post_accumulate_grad_hook(print)
        return leaf * x

    with pytest.raises(RuntimeError, match="register_post_accumulate_grad_hook"):
        tl.functionalize(f)(X)
