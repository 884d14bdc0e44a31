"""Operators that torch's functionalization refuses or gets wrong."""

import functools

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.transforms.functionalize import removes


def seeded(f, *args):
    torch.manual_seed(3)
    return f(*args)


NESTS_OF_RRELU = {
    "grad": lambda f, x: tl.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: tl.vjp(f, x)[1](torch.ones_like(x))[0],
    "jvp": lambda f, x: tl.jvp(f, (x,), (torch.ones_like(x),))[1],
    "of jvp": lambda f, x: tl.vjp(lambda x: tl.jvp(f, (x,), (x,))[1], x)[1](torch.ones_like(x))[0],
    "of vjp": lambda f, x: tl.grad(lambda x: tl.vjp(f, x)[1](x)[0].sum())(x),
}


@pytest.mark.parametrize("training", [True, False])
@removes
@pytest.mark.parametrize("nest", NESTS_OF_RRELU.values(), ids=NESTS_OF_RRELU)
def test_slopes_of_rrelu_are_those_that_were_drawn(nest, remove, training):
    """torch's derivative of the operator without a write reads what the noise was before."""
    x = torch.tensor([-1.0, -0.5, 2.0, -3.0], dtype=torch.float64)

    def rrelu(x):
        return torch.nn.functional.rrelu(x.sin() * 2, 0.1, 0.9, training=training)

    functionalize = functools.partial(tl.functionalize, remove=remove)
    slopes = seeded(rrelu, x) / (x.sin() * 2)
    expected = nest(lambda x: x.sin() * 2 * slopes, x)
    torch.testing.assert_close(seeded(nest, functionalize(rrelu), x), expected)
    torch.testing.assert_close(seeded(functionalize(lambda x: nest(rrelu, x)), x), expected)


def on_a_leaf(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


def by_checkpoint_of_torch(f):
    return lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


def scalar(f):
    return lambda x: f(x).pow(3).sum()


def on_samples(f):
    return tl.vmap(f, randomness="different")


READS_OF_WHAT_IS_SAVED = {
    "checkpoint": lambda f, x: tl.grad(scalar(tl.checkpoint(f)))(x),
    "hvp of checkpoint": lambda f, x: tl.hvp(scalar(tl.checkpoint(f)), (x,), (x,)),
    "in a checkpoint": lambda f, x: tl.checkpoint(tl.grad(scalar(f)))(x),
    "torch's checkpoint": lambda f, x: tl.grad(scalar(by_checkpoint_of_torch(f)))(x),
    "in torch's checkpoint": lambda f, x: by_checkpoint_of_torch(tl.grad(scalar(f)))(x),
    "vmap of checkpoint": lambda f, x: on_samples(tl.grad(scalar(tl.checkpoint(f))))(x),
    "checkpoint of vmap": lambda f, x: tl.grad(scalar(tl.checkpoint(on_samples(f))))(x),
    "leaf": on_a_leaf,
    "leaf in vmap": lambda f, x: on_a_leaf(on_samples(f), x),
    "grad in a leaf": lambda f, x: on_a_leaf(tl.grad(scalar(f)), x),
}


@pytest.mark.parametrize("in_place", [False, True])
@removes
@pytest.mark.parametrize("nest", READS_OF_WHAT_IS_SAVED.values(), ids=READS_OF_WHAT_IS_SAVED)
def test_slopes_of_rrelu_are_saved_after_the_draw(nest, remove, in_place):
    """Without functionalize the saved noise and the one that is drawn share memory."""
    x = torch.tensor([-1.0, -0.5, 2.0, -3.0], dtype=torch.float64)

    def rrelu(x):
        y = x.sin() * 2
        return torch.nn.functional.rrelu(y, 0.1, 0.9, training=True, inplace=in_place) * x

    found = seeded(tl.functionalize(lambda x: nest(rrelu, x), remove=remove), x)
    torch.testing.assert_close(found, seeded(nest, rrelu, x))


WRITES = {
    "square_": lambda y: y.square_(),
    "multiply_": lambda y: y.multiply_(2.5),
    "subtract_": lambda y: y.subtract_(y * 2),
    "divide_": lambda y: y.divide_(3, rounding_mode="floor"),
    "negative_": lambda y: y.negative_(),
    "absolute_": lambda y: y.absolute_(),
    "clip_": lambda y: y.clip_(0.1, 0.5),
    "arctan2_": lambda y: y.arctan2_(torch.ones_like(y)),
    "float_power_": lambda y: y.float_power_(2),
    "polygamma_": lambda y: y.polygamma_(1),
    "less_": lambda y: y.less_(0.5),
    "fill_diagonal_": lambda y: y.fill_diagonal_(3.0),
    "iand": lambda y: y * (y > 0.2).__iand__(y < 0.5),
    "selu_": lambda y: torch.selu_(y),
    "relu6_": lambda y: torch.nn.functional.relu6(y, inplace=True),
    "rrelu_": lambda y: torch.nn.functional.rrelu(y, inplace=True),
    "alpha_dropout_": lambda y: torch.nn.functional.alpha_dropout(y, training=True, inplace=True),
}
RESULTS_GIVEN = {  # autograd differentiates no out=, and functionalize leaves none
    "matmul": lambda y, **out: torch.matmul(y, y, **out),
    "quantile": lambda y, **out: torch.quantile(y, 0.3, dim=0, **out),
}
WAYS_TO_WRITE = {
    "": lambda f, x: f(x),
    "grad": lambda f, x: tl.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: tl.vmap(f, randomness="different")(torch.stack([x, x + 1])),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@removes
@pytest.mark.parametrize("nest", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_composite_operators_that_write(write, nest, remove):
    """torch's functionalization has no kernel for these, and refuses them."""
    x = torch.linspace(-0.5, 0.9, 9, dtype=torch.float64).reshape(3, 3)

    def f(x):
        y = x.sin()
        return write(y) * y.cos()

    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = seeded(nest, f, x)
    torch.testing.assert_close(seeded(nest, functionalize(f), x), expected)
    torch.testing.assert_close(seeded(functionalize(lambda x: nest(f, x)), x), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("nest", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE)
@pytest.mark.parametrize("compute", RESULTS_GIVEN.values(), ids=RESULTS_GIVEN)
def test_composite_operators_with_out(compute, nest):
    x = torch.linspace(-0.5, 0.9, 9, dtype=torch.float64).reshape(3, 3)

    def f(x):
        y = x.sin()
        return compute(y, out=torch.empty_like(compute(y))) * y.cos()

    found = nest(tl.functionalize(f), x)
    torch.testing.assert_close(found, nest(lambda x: compute(x.sin()) * x.sin().cos(), x))
