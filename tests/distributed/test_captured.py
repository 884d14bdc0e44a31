"""Tensors captured by a function over ranks: their gradients equal those on one process."""

import functools

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.distributed.nests import close
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import loss, numbers, samples, spread, weight
from torchlayers.distributed import counting
from torchlayers.errors import TransformError

F = torch.func


def helper(w):
    return lambda x: loss(w, x)


def with_default(w):
    total = w.sum()

    def of_sample(x, w=w, *, scale=total):
        return loss(w, x) * scale

    return of_sample


def of_container(p):
    return lambda x: loss(p["w"][0], x) + p["b"]


def of_itself(w):
    def of_sample(x, depth=2):
        return loss(w, x) if depth == 0 else of_sample(x, depth - 1)

    return of_sample


def without_a_sample(w):
    return lambda x: (x @ w).sum() * (w * w).sum()


# Each makes a function of one sample that captures w.
CAPTURING = {
    "closure": lambda w: lambda x: loss(w, x),
    "function in a closure": lambda w: functools.partial(lambda f, x: f(x).sin(), helper(w)),
    "partial": lambda w: functools.partial(loss, w),
    "default": with_default,
    "container": lambda w: (lambda p: lambda x: loss(p["w"][0], x) + p["b"])(
        {"w": [w], "b": w[0, 0]}
    ),
    "itself": of_itself,
    "transformed": lambda w: tl.grad(lambda x: loss(w, x)),
    "used alone": without_a_sample,
}


def total(make, vmap):
    return lambda w: (vmap(make(w))(samples()) ** 2).sum()


def ours(f):
    return spread(f, 0, out="full")


NESTS = {
    "grad": lambda f: tl.grad(f)(weight()),
    "vjp": lambda f: tl.vjp(f, weight())[1](torch.tensor(2.0))[0],
    "jvp": lambda f: tl.jvp(f, (weight(),), (weight().cos(),))[1],
    "jacrev": lambda f: tl.jacrev(f)(weight()),
    "hessian": lambda f: tl.hessian(f)(weight()),
    "grad(grad)": lambda f: tl.grad(lambda w: (tl.grad(f)(w) ** 2).sum())(weight()),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(torch.stack([weight(), weight().cos()])),
}


@case
def its_gradient_is_summed_over_the_ranks():
    for make in CAPTURING.values():
        for nest in NESTS.values():
            close(nest(total(make, ours)), nest(total(make, tl.vmap)))


@case
def so_is_a_parameters():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def gradients(f, vmap):
        return torch.autograd.grad((vmap(f)(samples()) ** 2).sum(), [*net.parameters()])

    for f in (net, net.forward, lambda x: net(x).sin(), lambda x: net[2](net[0](x)).sin()):
        for found, expected in zip(gradients(f, ours), gradients(f, tl.vmap), strict=True):
            close(found, expected)


@case
def so_is_that_of_given_parameters():
    net = nn.Linear(3, 2)
    given = {"weight": weight().T, "bias": numbers(2)}

    def of(vmap):
        def of_given(p):
            return (vmap(lambda x: tl.functional_call(net, p, (x,)))(samples()) ** 2).sum()

        return tl.grad(of_given)(given)

    found, expected = of(ours), of(tl.vmap)
    for name in given:
        close(found[name], expected[name])


LEAF = weight().requires_grad_()


@case
def so_is_a_globals():
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert spread(lambda x: loss(LEAF, x), 0)(samples()).requires_grad == grad
    found = torch.autograd.grad(total(lambda _: lambda x: loss(LEAF, x), ours)(None), LEAF)
    close(found[0], torch.autograd.grad(total(helper, tl.vmap)(LEAF), LEAF)[0])


@case
def all_gradients_are_one_collective():
    def of_both(w, b):
        return spread(lambda x: ((x @ w + b) ** 2).sum(), 0, out="local")(samples()).sum()

    with counting() as calls:
        tl.grad(of_both, (0, 1))(weight(), numbers(2))
    assert calls.names == ["psum_invariant_each"]


@case
def a_variable_that_is_assigned_to_keeps_its_value():
    count, seen = 0, []

    def of(w):
        def of_sample(x):
            nonlocal count
            count += 1
            seen.append(w.shape)
            return loss(w, x)

        return of_sample

    close(tl.grad(total(of, ours))(weight()), tl.grad(total(helper, tl.vmap))(weight()))
    assert count == len(seen) == 1


@case
def a_tensor_that_is_assigned_to_is_refused():
    def of(w):
        def of_sample(x):
            nonlocal w
            w = w * 2
            return loss(w, x)

        return of_sample

    with pytest.raises(TransformError, match="assigns to"):
        tl.grad(total(of, ours))(weight())


test_over_ranks = over_ranks(__name__)
