"""Behaviour specific to vjp rules."""

import pytest
import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from tests.custom_operators.modes import REVERSE, X, Y
from tests.custom_operators.operators import cube, custom, of_list, powers, sine_and_cosine, weighed
from tests.custom_operators.test_rules import RAISING
from tests.support.calls import ambient

SEEN = REVERSE.seen


def test_a_python_rule_reads_everything():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tl.grad(lambda x: (cube(x).mul_(2) * 1).sum())(X)
    assert tl.current_stack() == ()


def test_absent_cotangents_are_none():
    SEEN.clear()
    tl.grad(lambda x: sine_and_cosine(x)[0].sum())(X)
    tl.grad(lambda x: sine_and_cosine(x)[1].sum())(X)
    tl.grad(lambda x: torch.add(*sine_and_cosine(x)).sum())(X)
    tl.grad(lambda x: powers(x)[1].sum())(X)
    assert SEEN == [(True, False), (False, True), (True, True), (False, True, False)]


def test_keywords_are_passed():
    SEEN.clear()
    tl.grad(lambda x: weighed(x, Y, scale=0.25).sum())(X)
    assert SEEN == [0.25]


def test_rule_is_not_called_for_unused_gradients():
    SEEN.clear()
    tl.grad(lambda x: (x + weighed(x, Y, scale=1.0).detach()).sum())(X)
    tl.grad(lambda x: (weighed(x, Y, scale=1.0) * 0, x.sum())[1])(X)
    assert SEEN == []


def test_a_rule_of_the_operator_itself_is_its_derivative():
    """A rule that calls the operator is differentiable again."""

    @custom("negative_exponential")
    def exponential(x: Tensor) -> Tensor:
        return torch.from_numpy(2.718281828459045 ** -x.numpy())

    tl.extend.vjp_rule(exponential)(lambda g, primals, result: -g * exponential(*primals))

    def f(tf, op):
        return tf.grad(lambda x: tf.grad(lambda x: op(x).sum())(x).sum())(X)

    torch.testing.assert_close(f(tl, exponential), (-X).exp())
    third = tl.grad(lambda x: f_of(x, exponential))(X)
    torch.testing.assert_close(third, -(-X).exp())


def f_of(x, op):
    """The sum of second derivatives."""
    return tl.grad(lambda x: tl.grad(lambda x: op(x).sum())(x).sum())(x).sum()


def test_replace_takes_the_place_of_a_rule_of_ours():
    try:
        tl.extend.vjp_rule(torch.ops.aten.erfc.default, replace=True)(lambda g, primals, result: g)
        torch.testing.assert_close(tl.grad(lambda x: x.erfc().sum())(X), torch.ones_like(X))
    finally:
        tl._C.switch_vjp_rule("aten::erfc", "", True)
    torch.testing.assert_close(
        tl.grad(lambda x: x.erfc().sum())(X), torch.func.grad(lambda x: x.erfc().sum())(X)
    )


def test_rule_takes_precedence_except_in_plain_autograd():
    @custom("registered")
    def registered(x: Tensor) -> Tensor:
        return x * 2

    registered.register_autograd(lambda ctx, g: g * 2)
    tl.extend.vjp_rule(registered)(lambda g, primals, result: g * 5)
    assert tl.grad(lambda x: registered(x).sum())(X).equal(X * 0 + 5)
    x = X.clone().requires_grad_()
    registered(x).sum().backward()
    assert x.grad.equal(X * 0 + 2)


def test_a_rule_may_give_its_cotangent_as_it_is():
    """Accumulating into one gradient does not change another."""

    @custom("same_cotangent")
    def same(x: Tensor) -> Tensor:
        return x.clone()

    tl.extend.vjp_rule(same)(lambda g, primals, result: g)
    g = Y.clone()
    _, vjp_fn = tl.vjp(lambda x: same(x) + same(x) * 2, X)
    torch.testing.assert_close(vjp_fn(g)[0], 3 * Y)
    assert g.equal(Y)


def test_the_error_of_a_rule_passes_through_the_engine():
    def f(x):
        y = RAISING["vjp"](x.sin())
        y.register_hook(lambda g: g)
        return y.sum()

    before = ambient()
    with pytest.raises(ZeroDivisionError, match="of the rule"):
        tl.grad(f)(X)
    assert ambient() == before


@pytest.mark.parametrize(
    "gradients",
    [lambda g: ([g],), lambda g: ([g, g, g],), lambda g: (g,), lambda g: ([g, "t"],)],
    ids=["too few", "too many", "no list", "no tensor"],
)
def test_gradients_of_a_list_that_are_not_as_many_are_refused(gradients):
    tl.extend.vjp_rule(of_list, replace=True)(lambda g, primals, result: gradients(g))
    before = ambient()
    with pytest.raises(RuntimeError, match=r"^torchlayers: the vjp rule of .*::of_list"):
        tl.grad(lambda x, y: of_list([x, y]).sum(), argnums=(0, 1))(X, Y)
    assert ambient() == before
