"""functionalize around and inside other transforms, and inside another functionalize."""

import functools

import pytest
import torch
import torch.func
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.support.calls import agree, ambient
from tests.transforms.functionalize import X, others, removes


def squared_in_place(x):
    y = x.sin()
    y.mul_(x)
    y[0].add_(x.sum())
    return y.add_(1).view(-1)[: y.numel()].view(y.shape)


@others
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_inside_other_transforms(other, remove):
    agree(lambda tf: other(tf, tf.functionalize(squared_in_place, remove=remove))(X))


@others
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_around_other_transforms(other, remove):
    agree(lambda tf: tf.functionalize(other(tf, squared_in_place), remove=remove)(X))


@others
def test_around_other_transforms_the_graph_has_no_mutations(other):
    traced = make_fx(tl.functionalize(other(tl, squared_in_place)))(X)
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable
    torch.testing.assert_close(traced(X + 1), other(tl, squared_in_place)(X + 1))


@others
def test_mixed_with_torch_funcs(other):
    expected = other(tl, squared_in_place)(X)
    torch.testing.assert_close(tl.functionalize(other(torch.func, squared_in_place))(X), expected)
    torch.testing.assert_close(torch.func.functionalize(other(tl, squared_in_place))(X), expected)


@pytest.mark.parametrize("outer", [tl, torch.func], ids=["ours", "torch.func's"])
def test_functionalize_directly_inside_functionalize_is_refused(outer):
    before = ambient()
    with pytest.raises(RuntimeError, match=r"torchlayers: functionalize can't be applied directly"):
        outer.functionalize(tl.functionalize(written))(X)
    assert ambient() == before


def written(x):
    """A function that is functionalized inside another functionalize, or contains one."""
    y = x.clone()
    y[...].mul_(2)
    return y


NESTS = {
    "under vmap": lambda tf: tf.vmap(tf.functionalize(written)),
    "under grad": lambda tf: tf.grad(lambda x: tf.functionalize(written)(x).sum()),
    "under jvp": lambda tf: lambda x: tf.jvp(tf.functionalize(written), (x,), (x,)),
    "captured": lambda tf: lambda x: tf.vmap(tf.functionalize(lambda y: written(y) + x.sum()))(x),
    "captured and written": lambda tf: (
        lambda x: (
            tf.vmap(tf.functionalize(lambda y: written(y) + x.add_(1)))(x.clone()),
            x.clone(),
        )
    ),
    "argument written": lambda tf: (
        lambda x: (tf.vmap(tf.functionalize(torch.Tensor.sin_))(x), x.clone())
    ),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_functionalize_around_another_transform_around_functionalize(nest):
    agree(lambda tf: tf.functionalize(nest(tf))(X.clone()))


def scaled_by_new(x):
    return x * torch.ones(())


def written_to_new(x):
    y = torch.zeros(3)
    y[1:].add_(x[1:])
    return y


def new_alone(x):
    y = torch.full((2,), 3.0)
    return y.mul_(2), torch.tensor(1.0)


@pytest.mark.parametrize("f", [scaled_by_new, written_to_new, new_alone])
@removes
def test_tensors_created_in_two_functionalize_with_a_vmap_in_between(f, remove):
    inner = tl.vmap(tl.functionalize(f, remove=remove))
    result = tl.functionalize(inner, remove=remove)(X)
    torch.testing.assert_close(result, tl.vmap(f)(X))


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g


@pytest.mark.parametrize(("function", "factor"), [(Doubled.apply, 2), (lambda x: x, 10)])
def test_outer_functionalize_keeps_tracking_its_tensors(function, factor):
    def f(x):
        tracked = x.clone()
        (same,) = tl.vjp(tl.functionalize(lambda y: (y, function(tracked))), x)[0][1:]
        tracked.mul_(10)
        return same

    torch.testing.assert_close(tl.functionalize(f)(X), factor * X)


def reads(x):
    return x * 2


def writes(x):
    x.mul_(3)
    return x * 2


def writes_to_a_view(x):
    x[0].add_(1)
    return x.t() * 2


def returns(x):
    return x


def returns_a_view(x):
    return x[0]


# The inner function is given what the outer functionalize tracks, captured by the transform in
# between.
GIVEN_CAPTURED = {
    "vmap": lambda f, x: tl.vmap(lambda y: f(x) * y.sum())(x.clone()),
    "jvp": lambda f, x: tl.jvp(lambda y: f(x) * y.sum(), (x.clone(),), (x.cos(),)),
    "grad": lambda f, x: tl.grad(lambda y: (f(x) * y.sum()).sum())(x.clone()),
    "aux of grad": lambda f, x: tl.grad(lambda y: (y.sum(), f(x)), has_aux=True)(x.clone()),
}


@removes
@pytest.mark.parametrize("between", GIVEN_CAPTURED.values(), ids=GIVEN_CAPTURED)
@pytest.mark.parametrize("f", [reads, writes, writes_to_a_view, returns, returns_a_view])
def test_a_tensor_of_an_outer_functionalize_is_an_argument(f, between, remove):
    def outer(functionalize):
        def function(x):
            y = x * 1
            results = between(functionalize(f), y)
            y.mul_(10)  # seen by its views among the results
            return results, y

        return functionalize(function)(X.clone())

    try:
        expected = outer(lambda f: f)
    except tl.errors.InPlaceError:
        with pytest.raises(tl.errors.InPlaceError, match="captured tensor"):
            outer(functools.partial(tl.functionalize, remove=remove))
        return
    found = outer(functools.partial(tl.functionalize, remove=remove))
    torch.testing.assert_close(found, expected)
