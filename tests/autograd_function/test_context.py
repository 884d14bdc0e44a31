"""ctx: the values that a Function stores on it, their names, and how a vmap returns them."""

import pytest
import torch
import torch.func
from torch.autograd import Function

import torchlayers as tl
from tests.autograd_function.corpus import Batchable, Square, saves_inputs
from tests.autograd_function.test_corpus import old_style
from torchlayers.errors import FunctionError

X = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def keeping(field, value=9.0):
    """Returns a Function for x * 9 that stores the factor in this field of ctx."""

    class Nine(Batchable):
        @staticmethod
        def forward(x):
            return x * value

        @staticmethod
        def setup_context(ctx, inputs, output):
            setattr(ctx, field, value)

        @staticmethod
        def backward(ctx, g):
            return g * getattr(ctx, field)

        @staticmethod
        def jvp(ctx, t):
            return t * getattr(ctx, field)

    return Nine


TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "grad(vmap)": lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum())(X),
    "grad(vmap(vmap))": lambda f: tl.grad(lambda x: tl.vmap(tl.vmap(f))(x).sum())(X.view(3, 1)),
    "jvp(vmap)": lambda f: tl.jvp(tl.vmap(f), (X,), (torch.ones_like(X),))[1],
    "grad(functionalize(vmap))": lambda f: tl.grad(lambda x: tl.functionalize(tl.vmap(f))(x).sum())(
        X
    ),
}
under_each = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
in_each_style = pytest.mark.parametrize("style", [lambda f: f, old_style], ids=["new", "old"])


# Names of present and former attributes of our own ctx classes.
FIELDS = ["_ctx", "_level", "_saved_dims", "kept_by", "keep", "ctx", "level", "record", "fields"]
FIELDS += ["_calls", "_materialize_grads", "noted", "calls", "owner", "name"]


@pytest.mark.parametrize(
    "field",
    FIELDS,
)
@in_each_style
@under_each
def test_a_field_of_ctx_may_have_any_name(transform, style, field):
    result = transform(style(keeping(field)).apply)
    torch.testing.assert_close(result, torch.full_like(result, 9.0))


@in_each_style
@under_each
def test_field_of_ctx_with_our_prefix_is_rejected(transform, style):
    with pytest.raises(FunctionError) as caught:
        transform(style(keeping("_torchlayers_record")).apply)
    assert str(caught.value) == (
        "torchlayers: Nine sets ctx._torchlayers_record, but names that begin with _torchlayers "
        "are reserved for torchlayers. Rename the field."
    )


@in_each_style
def test_class_attribute_with_our_prefix_is_rejected(style):
    base = keeping("factor")
    base._torchlayers_generated = {}
    with pytest.raises(FunctionError) as caught:
        TRANSFORMS["grad"](style(base).apply)
    assert str(caught.value) == (
        "torchlayers: Nine has an attribute _torchlayers_generated, but names that begin with "
        "_torchlayers are reserved for torchlayers. Rename the attribute."
    )


# State that is stored from one call of backward to the next


def backward_twice(function, wrap=tl.vmap):
    """Returns the gradients of two backward passes over one graph."""
    x = X.clone().requires_grad_()
    y = wrap(function.apply)(x).sum()
    return [torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2)]


class Counts(Batchable):
    """Its gradient is g on the first call and 2 g on the second: ctx lives as long as the node."""

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.calls = 0
        ctx.gradients = []

    @staticmethod
    def backward(ctx, g):
        ctx.calls += 1
        ctx.gradients.append(g)
        return sum(ctx.gradients) * ctx.calls / len(ctx.gradients)


@pytest.mark.parametrize(
    "wrap",
    [tl.vmap, lambda f: lambda x: tl.vmap(tl.vmap(f))(x.view(3, 1)), lambda f: f],
    ids=["vmap", "vmap(vmap)", "plain"],
)
@in_each_style
def test_values_that_backward_writes_to_ctx_persist(style, wrap):
    first, second = backward_twice(style(Counts), wrap)
    torch.testing.assert_close(first, torch.ones_like(X))
    torch.testing.assert_close(second, torch.full_like(X, 2.0))


def test_a_field_that_backward_deletes_is_gone():
    class Once(Batchable):
        @staticmethod
        def forward(x):
            return x * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.x = inputs[0]

        @staticmethod
        def backward(ctx, g):
            del ctx.x
            return g

    with pytest.raises(AttributeError, match="x"):
        backward_twice(Once)


class NeverReads(Batchable):
    setup_context = staticmethod(saves_inputs)

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Reads(NeverReads):
    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0] / ctx.saved_tensors[0]


def test_reading_an_overwritten_saved_tensor_is_an_error():
    def gradient(function):
        x = X.clone().requires_grad_()
        y = x * 1
        z = tl.vmap(function.apply)(y).sum()
        with torch.no_grad():
            y.mul_(2)
        return torch.autograd.grad(z, x)[0]

    torch.testing.assert_close(gradient(NeverReads), torch.full_like(X, 2.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(Reads)


def test_list_subclass_on_ctx_is_unchanged():
    class Shape(list):
        pass

    class Wide(Batchable):
        @staticmethod
        def forward(x, shape):
            return x.expand(shape)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.shape = inputs[1]

        @staticmethod
        def backward(ctx, g):
            assert type(ctx.shape) is Shape
            return g.sum(), None

    gradient = tl.grad(lambda x: tl.vmap(lambda x: Wide.apply(x, Shape([4])))(x).sum())(X)
    torch.testing.assert_close(gradient, torch.full_like(X, 4.0))


def test_materialized_gradients_are_switched_off_by_the_attribute_too():
    seen = []

    class Two(Batchable):
        @staticmethod
        def forward(x):
            return x * 2, x * 3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.materialize_grads = False

        @staticmethod
        def backward(ctx, g, h):
            seen.append(h)
            return g * 2

    tl.grad(lambda x: tl.vmap(Two.apply)(x)[0].sum())(X)
    assert seen == [None]


KINDS = {"t": tl, "f": torch.func}


@pytest.mark.parametrize("kinds", ["tf", "ft", "ftf", "tft", "fttf", "ftft", "ttff"])
@pytest.mark.parametrize("grad", ["t", "f"])
@in_each_style
def test_vmaps_of_both_libraries_around_one_function(kinds, grad, style):
    """Each vmap, ours or torch.func's, stores its data on the ctx that it gets."""
    function = style(Square)

    def call(f):
        for kind in reversed(kinds):
            f = KINDS[kind].vmap(f)
        return KINDS[grad].grad(lambda x: f(x).sum())(X.view(3, *(1,) * (len(kinds) - 1)))

    torch.testing.assert_close(call(function.apply), call(torch.square))


# The names of nodes, on which programs rely


def names(tf, f):
    seen = []

    def look(y):
        seen.append(y.grad_fn.name())
        return y.sum()

    f(tf, look)
    return seen


NAMES = {
    "grad": lambda tf, look: tf.grad(lambda x: look(Square.apply(x)))(X),
    "grad(vmap)": lambda tf, look: tf.grad(lambda x: look(tf.vmap(Square.apply)(x)))(X),
    "grad(vmap(vmap))": lambda tf, look: tf.grad(lambda x: look(tf.vmap(tf.vmap(Square.apply))(x)))(
        X.view(3, 1)
    ),
    "vmap(grad)": lambda tf, look: tf.vmap(tf.grad(lambda x: look(Square.apply(x))))(X),
    "vmap, autograd": lambda tf, look: look(tf.vmap(Square.apply)(X.clone().requires_grad_())),
    "autograd": lambda tf, look: look(Square.apply(X.clone().requires_grad_())),
}


@pytest.mark.parametrize("f", NAMES.values(), ids=NAMES)
def test_nodes_are_named_as_torch_func_names_them(f):
    assert names(tl, f) == names(torch.func, f)


def test_error_names_the_users_function():
    class Bare(Function):
        generate_vmap_rule = True
        setup_context = staticmethod(saves_inputs)

        @staticmethod
        def forward(x):
            return x * 2

    for wrap in (lambda f: f, tl.vmap, lambda f: tl.vmap(tl.vmap(f))):
        with pytest.raises(FunctionError, match="torchlayers: Bare has no backward"):
            tl.grad(lambda x, wrap=wrap: wrap(Bare.apply)(x).sum())(X.view(3, 1))
