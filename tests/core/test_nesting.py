"""Nests of transforms against plain loops and plain autograd, alone and mixed with torch.func's.

Every transform here takes a function from tensors of one shape to tensors of the same shape and
returns another such function, so that they nest in any order. Each function also uses a tensor of
the level outside it (the ``x`` that it captures), which is a constant to its own level and a
variable to the outer transforms.
"""

import functools
import itertools

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.support.traced_steps import traced_steps


def grad(tf, g):
    return lambda x: tf.grad(lambda y: (g(y) * x.cos()).sum())(x)


def vjp(tf, g):
    return lambda x: tf.vjp(lambda y: g(y) * x.cos(), x)[1](x.sin())[0]


def jvp(tf, g):
    return lambda x: tf.jvp(lambda y: g(y) * x.cos(), (x,), (x.sin(),))[1]


def vmap(tf, g):
    return lambda x: tf.vmap(lambda y: g(y) * x.mean().cos(), in_dims=-1, out_dims=-1)(x)


def plain_grad(g):
    def gradient(x):
        y = variable(x)
        value = (g(y) * x.cos()).sum()
        return torch.autograd.grad(value, y, create_graph=True)[0]

    return gradient


def plain_vjp(g):
    def pulled_back(x):
        y = variable(x)
        return torch.autograd.grad(g(y) * x.cos(), y, x.sin(), create_graph=True)[0]

    return pulled_back


def plain_jvp(g):
    """Uses two backwards: the derivative of the cotangents is the Jacobian, transposed twice."""

    def derivative(x):
        y = variable(x)
        value = g(y) * x.cos()
        cotangent = torch.zeros_like(value, requires_grad=True)
        (pulled_back,) = torch.autograd.grad(value, y, cotangent, create_graph=True)
        return torch.autograd.grad(pulled_back, cotangent, x.sin(), create_graph=True)[0]

    return derivative


def plain_vmap(g):
    def loop(x):
        return torch.stack([g(y) * x.mean().cos() for y in x.unbind(-1)], -1)

    return loop


def variable(x):
    """x as a separate tensor to differentiate by, through which plain autograd still reaches x."""
    return x.view_as(x) if x.requires_grad else x.clone().requires_grad_()


TRANSFORMS = {
    "grad": (grad, plain_grad),
    "vjp": (vjp, plain_vjp),
    "jvp": (jvp, plain_jvp),
    "vmap": (vmap, plain_vmap),
}


def f(x):
    """Mixes all elements, with derivatives of any order."""
    return (x * x.sin().sum()).sin() + x.cumsum(0) * x.flip(0)


def f_writing_to_fresh_tensors(x):
    """The same by in-place operators on fresh tensors, on their views, and by indexing."""
    angle = x.clone()
    total = x.sin()
    total.sin_().asin_()
    angle.mul_(total.sum()).sin_()
    product = torch.zeros_like(x)
    for i in range(x.shape[0]):
        product[i] = x[: i + 1].sum(0)
    product.view(x.shape).mul_(x.flip(0))
    out = torch.empty_like(x)
    out.copy_(angle)
    out[...] += product
    return out


def nest(kinds, libraries, g):
    """Nests the kinds, given outermost first."""
    for kind, library in zip(reversed(kinds), reversed(libraries), strict=True):
        g = TRANSFORMS[kind][0](library, g)
    return g


def plain(kinds, g):
    for kind in reversed(kinds):
        g = TRANSFORMS[kind][1](g)
    return g


def point(kinds):
    """A tensor with a batch dimension for each vmap."""
    batches = [2] * kinds.count("vmap")
    values = torch.linspace(0.1, 0.7, 3 * 2 ** len(batches), dtype=torch.float64)
    return values.reshape(3, *batches)


def check(kinds, libraries, g=f):
    x = point(kinds)
    result = nest(kinds, libraries, g)(x)
    assert tl.current_stack() == ()
    torch.testing.assert_close(result, plain(kinds, f)(x).detach())


def names(nests):
    return [" of ".join(kinds) for kinds in nests]


NESTS = list(itertools.product(("grad", "jvp", "vmap"), repeat=3))
NESTS_WITH_VJP = [kinds for kinds in itertools.product(TRANSFORMS, repeat=3) if "vjp" in kinds]
MIXES = list(itertools.product((tl, torch.func), repeat=3))
DEEPER = [
    ("vmap", "grad", "jvp", "vmap"),
    ("jvp", "vmap", "grad", "grad"),
    ("grad", "vmap", "jvp", "grad"),
    ("grad", "jvp", "grad", "jvp"),
    ("jvp", "jvp", "vmap", "jvp"),
    ("vmap", "vmap", "grad", "vmap"),
]


@pytest.mark.parametrize("kinds", NESTS, ids=names(NESTS))
@pytest.mark.parametrize(
    "libraries",
    MIXES,
    ids=["+".join("ours" if library is tl else "theirs" for library in mix) for mix in MIXES],
)
def test_three_deep(kinds, libraries):
    check(kinds, libraries)


@pytest.mark.parametrize("kinds", NESTS_WITH_VJP, ids=names(NESTS_WITH_VJP))
def test_three_deep_with_vjp(kinds):
    check(kinds, (tl,) * 3)


@pytest.mark.parametrize("kinds", DEEPER, ids=names(DEEPER))
@pytest.mark.parametrize("libraries", [(tl,) * 4, (tl, torch.func) * 2], ids=["ours", "mixed"])
def test_four_deep(kinds, libraries):
    check(kinds, libraries)


@pytest.mark.parametrize("kinds", NESTS, ids=names(NESTS))
def test_writing_to_fresh_tensors(kinds):
    check(kinds, (tl,) * 3, f_writing_to_fresh_tensors)


@pytest.mark.parametrize("kinds", NESTS, ids=names(NESTS))
def test_plain_autograd_outside(kinds):
    x = point(kinds).requires_grad_()
    (gradient,) = torch.autograd.grad(nest(kinds, (tl,) * 3, f)(x).square().sum(), x)
    (expected,) = torch.autograd.grad(plain(kinds, f)(x).square().sum(), x)
    torch.testing.assert_close(gradient, expected)


WRONG = {
    "pointwise": lambda x: (x * torch.ones([1] * 63)).sin(),
    "in place": lambda x: (x * torch.ones(3, 2)).add_(torch.ones(5)),
    "out": lambda x: torch.add(x * torch.ones(2), torch.ones(3), out=x * torch.ones(2)),
    "reduction": lambda x: (x * torch.ones(3)).softmax(4),
    "product": lambda x: (x * torch.ones(3)) @ torch.ones(5),
    "view": lambda x: (x * torch.ones(3)).view(5),
    "copy": lambda x: (x * torch.ones(3)).copy_(torch.ones(5)),
    "rule": lambda x: torch.cat([x * torch.ones(3), x * torch.ones(2, 2)]),
}


def steps_to_the_error(f, level):
    """How many steps the layers take until the error has passed through `level` nested
    transforms."""
    for _ in range(level):
        f = functools.partial(lambda h, x: tl.vmap(lambda s: h(x * s))(torch.ones(1)).sum(), f)
    with traced_steps() as events, pytest.raises((RuntimeError, IndexError)):
        f(torch.tensor(1.0))
    return len(events)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "around", [lambda f: f, tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))]
)
def test_an_error_costs_each_level_once(name, around):
    """Steps grow linearly per added level and do not double."""

    def f(x):
        return around(lambda x: WRONG[name](x).sum())(x)

    counts = [steps_to_the_error(f, level) for level in (4, 8, 12)]
    assert counts[2] - counts[1] < 2 * (counts[1] - counts[0])
