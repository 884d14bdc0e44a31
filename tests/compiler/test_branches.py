"""torch.cond in compiled functions."""

import functools

import pytest
import torch

import torchlayers as tl

replayed = functools.partial(tl.compile, backend="replay")

X = torch.ones(3)


def one(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def a_dict(x):
    return torch.cond(
        x.sum() > 0,
        lambda x: {"a": x.sin(), "b": (x * 2,)},
        lambda x: {"a": x.cos(), "b": (x + 1,)},
        (x,),
    )


@pytest.mark.parametrize("f", [one, a_dict])
def test_each_branch_is_taken(f):
    compiled = replayed(f)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), f(x))
    assert len(compiled.report().signatures) == 1


def test_batch_takes_both_branches():
    batch = torch.stack([X, -X])
    torch.testing.assert_close(replayed(tl.vmap(one))(batch), torch.stack([X.sin(), X.cos()]))


def test_gradients_are_those_of_the_branch_taken():
    compiled = replayed(one)
    for sign, slope in ((1, X.cos()), (-1, X.sin())):
        x = (sign * X).requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), (slope,))


def test_tensors_captured_by_a_branch_are_inputs():
    scale = torch.tensor(3.0)
    compiled = replayed(
        lambda x: torch.cond(x.sum() > 0, lambda x: x * scale, lambda x: x + 0, (x,))
    )
    torch.testing.assert_close(compiled(X), 3 * X)
    scale.fill_(4.0)
    torch.testing.assert_close(compiled(X), 4 * X)


def test_cond_works_uncompiled_afterwards():
    replayed(one)(X)
    torch.testing.assert_close(one(-X), X.cos())


def test_branches_draw_the_same_numbers_as_uncompiled():
    def func(x):
        return torch.cond(x.sum() > 2, lambda x: x + torch.rand(3), lambda x: x.sin(), (x,))

    compiled = replayed(func)
    torch.manual_seed(0)
    expected = [func(torch.ones(3)), func(torch.ones(3))]
    torch.manual_seed(0)
    torch.testing.assert_close([compiled(torch.ones(3)), compiled(torch.ones(3))], expected)


def test_two_equal_branches_draw_twice():
    def draw(x):
        return torch.cond(x.sum() > 2, lambda x: x + torch.rand(3), lambda x: x.sin(), (x,))

    twice = replayed(lambda x: draw(x) - draw(x))
    assert (twice(torch.ones(3)) != 0).all()
    assert (twice(torch.ones(3)) != 0).all()
