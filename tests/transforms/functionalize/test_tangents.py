"""Tangents that a functionalized function reads or makes by hand."""

import pytest
import torch
import torch.func
from torch.autograd import forward_ad

import torchlayers as tl
from tests.transforms.functionalize import X, removes


def doubled(x):
    """A function of the tangent that it sees."""
    primal, tangent = forward_ad.unpack_dual(x * x)
    return primal if tangent is None else primal + 10 * tangent.sin()


def made_again(x):
    primal, tangent = forward_ad.unpack_dual(x)
    y = forward_ad.make_dual(primal, primal * 0 + 7 if tangent is None else tangent * 2)
    return y * y


@removes
@pytest.mark.parametrize("f", [doubled, made_again])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: tl.jvp(f, (x,), (x.cos(),)),
        lambda f, x: tl.jvp(tl.vmap(f), (x,), (x.cos(),)),
        lambda f, x: tl.grad(lambda x: tl.jvp(f, (x,), (x.cos(),))[1].sum())(x),
        lambda f, x: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),)))(x),
    ],
    ids=["jvp", "jvp of vmap", "grad of jvp", "vmap of jvp"],
)
def test_tangents_are_seen_inside(call, f, remove):
    found = call(tl.functionalize(f, remove=remove), X)
    torch.testing.assert_close(found, call(f, X))


def test_a_dual_level_is_entered_inside():
    def f(x):
        with forward_ad.dual_level():
            y = forward_ad.make_dual(x, x.cos())
            return forward_ad.unpack_dual(y * y).tangent

    torch.testing.assert_close(tl.functionalize(f)(X), 2 * X * X.cos())
    torch.testing.assert_close(tl.vmap(tl.functionalize(f))(X), 2 * X * X.cos())


@pytest.mark.parametrize(
    "part",
    [
        lambda x: forward_ad.unpack_dual(x).primal,
        lambda x: forward_ad.unpack_dual(x).tangent,
        lambda x: forward_ad.make_dual(torch.zeros_like(x), forward_ad.unpack_dual(x).primal),
    ],
    ids=["the primal", "the tangent", "a dual tensor"],
)
def test_a_part_of_a_dual_tensor_is_not_written_to(part):
    def f(x):
        part(x).mul_(2)
        return x.sin()

    with pytest.raises(RuntimeError, match=r"make_dual or unpack_dual .* Write to a clone"):
        tl.jvp(tl.functionalize(f), (X.clone(),), (X.cos(),))
