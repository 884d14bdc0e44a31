"""Behaviour specific to jvp rules."""

import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from tests.custom_operators.modes import FORWARD, T, X, Y, pushed
from tests.custom_operators.operators import custom, product_of_list, weighed
from tests.custom_operators.test_rules import functions


@functions
def test_linearize_follows_a_rule(f, plain):
    torch.testing.assert_close(tl.linearize(f, X)[1](T), pushed(torch.func, plain, X, T)[1])


@custom("third_power")
def third_power(x: Tensor) -> Tensor:
    """Has autograd's derivative, and only a jvp rule."""
    return x**3


third_power.register_autograd(
    lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@tl.extend.jvp_rule(third_power)
def third_power_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return third_power(x), 3 * x**2 * t


def test_grad_of_jvp_differentiates_what_the_rule_computes():
    def tangent(tf, f):
        return lambda x: pushed(tf, f, x, T)[1].sum()

    expected = torch.func.grad(tangent(torch.func, lambda x: x**3))(X)
    torch.testing.assert_close(tl.grad(tangent(tl, third_power))(X), expected)


def test_hvp_follows_the_rule_under_a_gradient():
    (product,) = tl.hvp(lambda x: (third_power(x) * x).sum(), (X,), (T,))
    torch.testing.assert_close(product, 12 * X**2 * T)


def test_absent_tangents_are_none():
    FORWARD.seen.clear()
    tl.jvp(lambda x: weighed(x, Y, scale=1.0), (X,), (T,))
    tl.jvp(lambda x: weighed(Y, x, scale=1.0), (X,), (T,))
    tl.jvp(lambda x: product_of_list([Y, x, Y], 1), (X,), (T,))
    assert FORWARD.seen == [(True, False), (False, True), (False, True, False)]


def test_a_rule_may_give_an_operand_or_its_tangent_as_it_is():
    """Writes to the results affect neither."""

    @custom("same_tangent")
    def same(x: Tensor) -> Tensor:
        return x.clone()

    tl.extend.jvp_rule(same)(lambda primals, tangents: (same(*primals), tangents[0]))

    def f(x):
        y = x * 1
        same(y).mul_(3)
        return y

    torch.testing.assert_close(pushed(tl, f, X, T), (X, T))
