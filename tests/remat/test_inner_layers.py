"""What is saved in a checkpoint, or under hooks, holds tensors of layers that have ended or are
above: it is taken apart and put together at its own layer."""

import itertools

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from tests.support.held_tensors import Holder, Weigh

X = torch.tensor([0.3, -0.7], dtype=torch.float64)


def hooked(f):
    def wrapper(x):
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            return f(x)

    return wrapper


WAYS = {
    "checkpoint": tl.checkpoint,
    "torch's": lambda f: lambda x: torch_checkpoint(f, x, use_reentrant=False),
    "hooks": hooked,
}
TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "vmap": lambda f: lambda x: tl.vmap(f)(torch.stack([x, x.sin()])).sum(0),
    "functionalize": tl.functionalize,
}
NESTS = [
    names
    for names in itertools.product(TRANSFORMS, repeat=3)
    if ("functionalize", "functionalize") not in itertools.pairwise(names)
]
nests = pytest.mark.parametrize("names", NESTS, ids=" of ".join)
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def nested(names, f):
    """The transforms of f, the first around the others."""
    for name in reversed(names):
        f = TRANSFORMS[name](lambda x, f=f: f(x) * x.cos())
    return f


@pytest.mark.sweep
@ways
@nests
def test_constants_that_a_function_holds(names, way):
    """backward and jvp read a tensor of a layer that has ended by then."""

    def innermost(x):
        return Weigh.apply(x, Holder(torch.arange(1.0, 3.0).mean())) * x.sin()

    assert_recomputed_alike(nested(names, innermost), way)


def writes_to_a_view(x):
    whole = torch.zeros_like(x)
    view = whole.unsqueeze(-1)
    view[0].mul_(x[0])
    view[1:].add_(x[1:, None])
    return view.sin()[..., 0] + whole


@pytest.mark.sweep
@ways
@nests
def test_tangents_of_views_that_are_written_to(names, way):
    """torch makes the tangent of such a view when it is asked for."""
    expected = nested(names, writes_to_a_view)(X)
    torch.testing.assert_close(nested(names, way(writes_to_a_view))(X), expected)
    if "functionalize" not in names:  # it makes aten::copy of such writes, without a derivative
        assert_recomputed_alike(nested(names, writes_to_a_view), way)


class Doubling(tl.Layer):
    """Doubles each sine, also without a tensor of its own."""

    def process(self, op, args, kwargs):
        result = super().process(op, args, kwargs)
        return 2 * result if op is torch.ops.aten.sin.default else result


def cubed(x):
    return Cube.apply(x)


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 3 * ctx.saved_tensors[0] ** 2


@ways
@pytest.mark.parametrize(
    "inside",
    [
        lambda x: torch.nn.functional.linear(x.sin().exp(), torch.eye(2).to(x)),
        lambda x: cubed(x.sin()),
        lambda x: tl.cond(x.sum() > 9, torch.cos, lambda x: x.sin().exp(), x),
    ],
)
def test_a_layer_that_only_the_recomputation_refers_to(inside, way):
    def of_layer(x):
        with Doubling():
            return way(inside)(x).sum()

    layer = Doubling()

    def of_living_layer(x):
        with layer:
            return inside(x).sum()

    torch.testing.assert_close(tl.grad(of_layer)(X), tl.grad(of_living_layer)(X))
    batch = torch.stack([X, X.cos()])
    expected = tl.vmap(tl.grad(of_living_layer))(batch)
    torch.testing.assert_close(tl.vmap(tl.grad(of_layer))(batch), expected)


def assert_recomputed_alike(func, way):
    """Compares results and plain autograd's gradients."""
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    ours, expected = way(func)(x), func(y)
    torch.testing.assert_close(ours, expected)
    for result, given in ((ours, x), (expected, y)):
        if result.requires_grad:
            result.sum().backward()
            assert given.grad is not None
    torch.testing.assert_close(x.grad, y.grad)
