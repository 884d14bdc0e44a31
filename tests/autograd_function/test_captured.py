"""Tensors that a Function reads without taking them as arguments: from an object or a closure."""

import pytest
import torch
from torch.autograd import Function

import torchlayers as tl
from tests.support.calls import ambient
from tests.support.held_tensors import Holder, Weigh
from torchlayers.errors import FunctionError

X = torch.linspace(0.1, 1.0, 3, dtype=torch.float64)
XS = torch.stack([X, 2 * X])
ONES = torch.ones_like(X)


class WeighBatched(Weigh):
    """The same with a vmap staticmethod."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x, holder):
        return WeighBatched.apply(x.movedim(in_dims[0], 0), holder), 0


class WeighOldStyle(Function):
    """The same in the old style, which saves the weights too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x, holder):
        ctx.holder = holder
        ctx.save_for_backward(holder.tensor)
        ctx.save_for_forward(holder.tensor)
        return x * holder.tensor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.holder.tensor


class WeighOnce(Weigh):
    """The same, differentiable once."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.holder.tensor, None


FUNCTIONS = {
    "new style": Weigh,
    "vmap staticmethod": WeighBatched,
    "old style": WeighOldStyle,
}

NESTS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: tl.vjp(f, X)[1](ONES)[0],
    "jvp": lambda f: tl.jvp(f, (X,), (ONES,)),
    "vmap": lambda f: tl.vmap(f)(XS),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "linearize": lambda f: tl.linearize(f, X)[1](ONES),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sin().sum())(X),
    "jacrev of jacrev": lambda f: tl.jacrev(tl.jacrev(lambda x: f(x).sin().sum()))(X),
    "jvp of grad": lambda f: tl.jvp(tl.grad(lambda x: f(x).sin().sum()), (X,), (ONES,)),
    "vmap of grad": lambda f: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(XS),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(f)(xs).sin().sum())(XS),
    "jvp of vmap": lambda f: tl.jvp(tl.vmap(f), (XS,), (torch.ones_like(XS),)),
    "vmap of vmap": lambda f: tl.vmap(tl.vmap(f))(torch.stack([XS, XS + 1])),
    "functionalize of grad": lambda f: tl.functionalize(tl.grad(lambda x: f(x).sum()))(X),
    "vmap of grad of vmap": lambda f: tl.vmap(tl.grad(lambda xs: tl.vmap(f)(xs).sin().sum()))(
        torch.stack([XS, XS + 1])
    ),
    "grad of vmap of grad": lambda f: tl.grad(
        lambda xs: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(xs).sum()
    )(XS),
    "compiled by replay": lambda f: tl.compile(lambda x: f(x.sin()), backend="replay")(X),
    "grad, compiled by replay": lambda f: tl.compile(
        tl.grad(lambda x: f(x).sin().sum()), backend="replay"
    )(X),
}
# functionalize ends before the backward runs, and its tensors are in wrappers that have ended too.
WITH_FUNCTIONALIZE = {
    "grad of functionalize": lambda f: tl.grad(lambda x: tl.functionalize(f)(x).sum())(X),
    "vmap of functionalize": lambda f: tl.vmap(tl.functionalize(f))(XS),
    "functionalize of vmap of functionalize": lambda f: tl.functionalize(
        tl.vmap(tl.functionalize(f))
    )(XS),
    "vmap of grad of functionalize": lambda f: tl.vmap(
        tl.grad(lambda x: tl.functionalize(f, remove="mutations_and_views")(x).sin().sum())
    )(XS),
    "functionalize of grad of functionalize": lambda f: tl.functionalize(
        tl.grad(lambda x: tl.functionalize(f, remove="mutations_and_views")(x).sin().sum())
    )(X),
    "grad of grad of functionalize of vjp": lambda f: tl.grad(
        lambda x: tl.grad(
            lambda y: tl.functionalize(lambda z: tl.vjp(lambda z: f(z).sin(), z)[1](y)[0])(y).sum()
        )(x).sum()
    )(X),
    "hessian of functionalize of vjp": lambda f: tl.hessian(
        lambda x: tl.functionalize(lambda y: tl.vjp(lambda z: f(z).sin(), y)[1](x)[0])(x).sum()
    )(X),
    # A layer in Python has a functionalize of its own on top of it.
    "jet of grad of functionalize": lambda f: tl.jet(
        tl.grad(lambda x: tl.functionalize(f)(x).sum()), (X,), ([ONES],)
    )[1][0],
    "jet of vmap of linearize of functionalize": lambda f: tl.jet(
        tl.vmap(lambda x: tl.linearize(tl.functionalize(f), x)[1](ONES)), (XS,), ([XS],)
    )[1][0],
    "laplacian of jvp of functionalize": lambda f: tl.laplacian(
        lambda x: tl.jvp(tl.functionalize(f), (x,), (x,))[1].sum()
    )(X),
}

in_each_nest = pytest.mark.parametrize("nest", NESTS)


def made_inside():
    return torch.arange(3, dtype=torch.float64) + 1


@pytest.mark.sweep
@in_each_nest
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_constant_made_inside_the_transform(kind, nest):
    before = ambient()
    function = FUNCTIONS[kind]
    result = NESTS[nest](lambda x: function.apply(x.sin(), Holder(made_inside())))
    torch.testing.assert_close(result, NESTS[nest](lambda x: x.sin() * made_inside()))
    assert ambient() == before


def written_after_it_was_viewed(x):
    memory = x.new_zeros(*x.shape, 2)
    view = memory[..., 1]
    memory[..., 1:].add_(0.5)
    memory.mul_(3)
    return view


HELD = {
    "created": lambda x: made_inside(),
    "a view": lambda x: torch.arange(1, 4, dtype=torch.float64).view(1, 3)[0],
    "of a sample's shape": lambda x: torch.full_like(x, 0.5),
    "detached": lambda x: x.detach().cos(),
    "written": lambda x: torch.zeros_like(x).add_(0.5).mul_(3),
    "written after it was viewed": written_after_it_was_viewed,
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("nest", WITH_FUNCTIONALIZE)
def test_a_constant_of_a_functionalize_that_has_ended(nest, held):
    before, constant = ambient(), HELD[held]
    result = WITH_FUNCTIONALIZE[nest](lambda x: Weigh.apply(x.sin(), Holder(constant(x))))
    torch.testing.assert_close(
        result, WITH_FUNCTIONALIZE[nest](lambda x: x.sin() * constant(x).detach())
    )
    assert ambient() == before


@in_each_nest
def test_a_detached_tensor_is_a_constant_too(nest):
    result = NESTS[nest](lambda x: Weigh.apply(x.sin(), Holder(x.detach().cos())))
    torch.testing.assert_close(result, NESTS[nest](lambda x: x.sin() * x.detach().cos()))


def test_a_constant_in_a_function_that_is_differentiable_once():
    gradient = tl.grad(lambda x: WeighOnce.apply(x.sin(), Holder(made_inside())).sum())(X)
    torch.testing.assert_close(gradient, X.cos() * made_inside())


class Table(Function):
    """Returns and saves a tensor that is not an argument."""

    generate_vmap_rule = True
    held: Holder

    @staticmethod
    def forward(x):
        return x * 2, Table.held.tensor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(Table.held.tensor)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    "nest", ["grad", "vjp", "vmap", "vmap of grad", "grad of vmap", "jacrev of jacrev"]
)
def test_a_constant_that_is_returned_and_saved_as_it_is(nest):
    def held(x):
        Table.held = Holder(made_inside())
        doubled, table = Table.apply(x)
        return doubled * table

    def without(x):
        table = made_inside()
        y = x * table  # its gradient is the table
        return (x * 2).detach() * table + (y - y.detach()) * table

    torch.testing.assert_close(NESTS[nest](held), NESTS[nest](without))


# Batched tensors of a vmap


VMAPS = {
    "vmap": lambda f: tl.vmap(f)(XS),
    "vmap of vmap": lambda f: tl.vmap(tl.vmap(f))(torch.stack([XS, XS + 1])),
    "jvp outside": lambda f: tl.jvp(lambda x: x * tl.vmap(f)(XS).sum(), (X,), (ONES,)),
    "grad outside": lambda f: tl.grad(lambda x: (x * tl.vmap(f)(XS)).sum())(X),
    "functionalize outside": lambda f: tl.functionalize(tl.vmap(f))(XS),
    "grad between": lambda f: tl.vmap(
        lambda y: tl.grad(lambda x: (x * tl.vmap(lambda z: f(z) * y)(XS)).sum())(y)
    )(XS),
}


@pytest.mark.parametrize("nest", VMAPS)
@pytest.mark.parametrize("given", ["batched", "not batched"])
def test_batched_tensor_in_an_object_is_read_per_sample(nest, given):
    def factor(x):
        return x.cos() if given == "batched" else ONES * 3

    def held(x):
        return Weigh.apply(factor(x), Holder(x.sin()))

    torch.testing.assert_close(VMAPS[nest](held), VMAPS[nest](lambda x: factor(x) * x.sin()))


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_derivatives_by_arguments_beside_a_batched_tensor_in_an_object(transform):
    weights = XS.cos()

    def both(function):
        def f(xs):
            return tl.vmap(function, (0, 0))(xs, weights).sin()

        if transform == "grad":
            return tl.grad(lambda xs: f(xs).sum())(XS)
        return tl.jvp(f, (XS,), (torch.ones_like(XS),))

    torch.testing.assert_close(
        both(lambda x, w: Weigh.apply(x, Holder(w))), both(lambda x, w: x * w)
    )


class NoRule(Weigh):
    generate_vmap_rule = False


@pytest.mark.parametrize("function", [NoRule, WeighBatched], ids=["no rule", "vmap staticmethod"])
@pytest.mark.parametrize("given", ["batched", "not batched"])
def test_a_batched_tensor_in_an_object_is_refused_without_a_generated_rule(function, given):
    before = ambient()
    with pytest.raises(FunctionError) as caught:
        tl.vmap(lambda x: function.apply(x if given == "batched" else ONES, Holder(x.sin())))(XS)
    if function is NoRule and given == "batched":
        assert "vmap does not know how to batch NoRule" in str(caught.value)
    else:
        method = "vmap" if given == "batched" else "forward"
        words = f"{function.__name__}.{method} uses a captured tensor that an enclosing vmap"
        assert words in str(caught.value)
    assert ambient() == before


# Captures that would lose a derivative


LOSING = {
    "grad": lambda f: tl.grad(lambda x: f(x, x).sum())(X),
    "jvp": lambda f: tl.jvp(lambda x: f(x, x), (X,), (ONES,)),
    "vmap of grad": lambda f: tl.vmap(tl.grad(lambda x: f(x, x).sum()))(XS),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(lambda x: f(x, x))(xs).sum())(XS),
    "an outer grad": lambda f: tl.grad(lambda x: tl.grad(lambda y: f(y, x).sum())(x).sum())(X),
    "an outer jvp": lambda f: tl.jvp(lambda x: tl.grad(lambda y: f(y, x).sum())(x), (X,), (ONES,)),
    "an outer grad, across a vmap": lambda f: tl.grad(
        lambda x: tl.vmap(lambda y: f(y, x * y))(XS).sum()
    )(X),
}


@pytest.mark.parametrize("nest", LOSING)
@pytest.mark.parametrize("kind", ["new style", "old style"])
def test_capturing_a_differentiated_tensor_is_rejected(kind, nest):
    function, before = FUNCTIONS[kind], ambient()
    with pytest.raises(FunctionError, match="uses a captured tensor"):
        LOSING[nest](lambda x, held: function.apply(x * 2, Holder(held * 2)))
    assert ambient() == before


def test_capturing_a_differentiated_tensor_is_allowed_under_no_grad():
    def f(x):
        with torch.no_grad():
            factor = Weigh.apply(x.sin(), Holder(x))
        return (factor * x).sum()

    torch.testing.assert_close(tl.grad(f)(X), X.sin() * X)


class Square(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return 2 * t * ctx.saved_tensors[0]


class Cube(Square):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * g * Square.apply(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, t):
        return 3 * t * Square.apply(ctx.saved_tensors[0])


CUBES = {
    **NESTS,
    "vmap of vjp of vmap": lambda f: tl.vmap(
        lambda xs: tl.vjp(tl.vmap(f), xs)[1](torch.ones_like(xs))[0]
    )(torch.stack([XS, XS + 1])),
    "vmap of jacrev of vmap": lambda f: tl.vmap(tl.jacrev(tl.vmap(f)))(torch.stack([XS, XS + 1])),
    "vmap of jvp of vmap": lambda f: tl.vmap(
        lambda xs: tl.jvp(tl.vmap(f), (xs,), (torch.ones_like(xs),))
    )(torch.stack([XS, XS + 1])),
    "vmap of linearize of vmap": lambda f: tl.vmap(
        lambda xs: tl.linearize(tl.vmap(f), xs)[1](torch.ones_like(xs))
    )(torch.stack([XS, XS + 1])),
}


@pytest.mark.parametrize("nest", CUBES)
def test_function_called_in_the_backward_of_another(nest):
    torch.testing.assert_close(CUBES[nest](Cube.apply), CUBES[nest](lambda x: x**3))
