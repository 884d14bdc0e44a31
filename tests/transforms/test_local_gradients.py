"""requires_grad_() and torch.autograd.grad inside transforms."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import TransformError

X = torch.linspace(0.1, 1.0, 3, dtype=torch.float64)
XS = torch.stack([X, 2 * X])
ONES = torch.ones_like(X)

NESTS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: tl.vjp(f, X)[1](ONES)[0],
    "jvp": lambda f: tl.jvp(f, (X,), (ONES,)),
    "vmap": lambda f: tl.vmap(f)(XS),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "functionalize, views too": lambda f: tl.functionalize(f, remove="mutations_and_views")(X),
    "linearize": lambda f: tl.linearize(f, X.clone())[1](ONES),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sin().sum())(X),
    "grad of grad": lambda f: tl.grad(lambda x: tl.grad(lambda x: f(x).sin().sum())(x).sum())(X),
    "jvp of grad": lambda f: tl.jvp(tl.grad(lambda x: f(x).sin().sum()), (X,), (ONES,)),
    "grad of jvp": lambda f: tl.grad(lambda x: tl.jvp(f, (x,), (ONES,))[1].sin().sum())(X),
    "vmap of grad": lambda f: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(XS),
    "vmap of jvp": lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (ONES,)))(XS),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(f)(xs).sin().sum())(XS),
    "jvp of vmap": lambda f: tl.jvp(tl.vmap(f), (XS,), (torch.ones_like(XS),)),
    "vmap of vmap": lambda f: tl.vmap(tl.vmap(f))(torch.stack([XS, XS + 1])),
    "vmap along the last": lambda f: tl.vmap(f, in_dims=1, out_dims=1)(XS.T.contiguous()),
    "functionalize of vmap": lambda f: tl.functionalize(tl.vmap(f))(XS),
    "vmap of functionalize": lambda f: tl.vmap(tl.functionalize(f))(XS),
    "vmap of grad of vmap": lambda f: tl.vmap(tl.grad(lambda xs: tl.vmap(f)(xs).sin().sum()))(
        torch.stack([XS, XS + 1])
    ),
    "plain autograd around vmap": lambda f: torch.autograd.grad(
        tl.vmap(f)(xs := XS.clone().requires_grad_()).sin().sum(), xs
    ),
}
in_each_nest = pytest.mark.parametrize("nest", NESTS)


def same(nest, function, without):
    before = ambient()
    torch.testing.assert_close(NESTS[nest](function), NESTS[nest](without))
    assert ambient() == before


@in_each_nest
def test_the_gradient_of_a_detached_tensor_is_a_constant(nest):
    def f(x):
        y = x.detach().requires_grad_()
        assert y.requires_grad
        loss = (y**3).sum()
        assert loss.requires_grad
        (gradient,) = torch.autograd.grad(loss, y)
        assert not gradient.requires_grad
        return gradient * x

    same(nest, f, lambda x: 3 * x.detach() ** 2 * x)


@in_each_nest
def test_a_second_derivative_taken_inside(nest):
    def f(x):
        y = x.detach()
        y.requires_grad = True
        (gradient,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), y)
        return second * x

    same(nest, f, lambda x: 6 * x.detach() * x)


@in_each_nest
def test_a_gradient_by_the_argument_itself_is_differentiated_too(nest):
    def f(x):
        x.requires_grad_(True)
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]

    same(nest, f, lambda x: 3 * x**2)


@pytest.mark.parametrize("nest", [each for each in NESTS if "autograd" not in each])
def test_such_a_gradient_is_differentiated_without_a_graph_of_its_own(nest):
    """As in forward mode, which does not know of graphs; autograd itself gives a constant."""

    def f(x):
        x.requires_grad_()
        y = x.detach().requires_grad_()
        by_x, by_y = torch.autograd.grad((x.sin() ** 3 * y).sum(), (x, y))
        return by_x + by_y * y

    def same_by_hand(x):
        y = x.detach()
        return 3 * x.sin() ** 2 * x.cos() * y + x.sin() ** 3 * y

    same(nest, f, same_by_hand)


def test_a_gradient_without_a_graph_is_a_constant_where_gradients_are_disabled():
    def f(x):
        y = x.sin().sum()
        with torch.no_grad():
            return torch.autograd.grad(y, x)[0] @ x

    torch.testing.assert_close(tl.grad(lambda x: f(x) + x.sum())(X), ONES)


class Cubed(torch.autograd.Function):
    """(x**3).sum(), whose backward differentiates it by its saved input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x**3).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            return torch.autograd.grad(g * (x**3).sum(), x)[0]


def test_a_second_derivative_of_a_function_whose_backward_differentiates():
    found = tl.jacrev(tl.grad(lambda x: Cubed.apply(x.sin())))(X)
    torch.testing.assert_close(found, tl.jacrev(tl.grad(lambda x: (x.sin() ** 3).sum()))(X))


@in_each_nest
def test_a_cotangent_of_each_sample_and_an_unused_input(nest):
    def f(x):
        y, unused = x.detach().requires_grad_(), (x.detach() + 1).requires_grad_()
        gradient, none = torch.autograd.grad(
            y.sin(), (y, unused), x.detach() + 1, allow_unused=True
        )
        assert none is None
        return gradient * x

    same(nest, f, lambda x: x.detach().cos() * (x.detach() + 1) * x)


class Root(torch.autograd.Function):
    """A square root whose derivative is found by differentiating the equation that it solves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g / Root.slope(ctx)

    @staticmethod
    def jvp(ctx, t):
        return t / Root.slope(ctx)

    @staticmethod
    def slope(ctx):
        x, y = ctx.saved_tensors
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            (slope,) = torch.autograd.grad((y * y - x.detach()).sum(), y)
        return slope


@pytest.mark.parametrize(
    "nest",
    ["grad", "vjp", "jvp", "vmap", "jacrev", "jacfwd", "functionalize", "vmap of grad",
     "vmap of jvp", "jvp of vmap", "vmap of vmap", "plain autograd around vmap", "linearize"],
)  # fmt: skip
def test_an_implicit_solver_differentiates_in_its_backward(nest):
    torch.testing.assert_close(NESTS[nest](Root.apply), NESTS[nest](torch.sqrt))


def test_an_implicit_solver_under_grad_of_vmap():
    gradient = tl.grad(lambda xs: tl.vmap(Root.apply)(xs).sum())(XS)
    torch.testing.assert_close(gradient, 0.5 / XS.sqrt())


class Recomputed(torch.autograd.Function):
    """sin(x) * 2, whose backward recomputes it and differentiates the result by its saved input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(x.sin() * 2, x, g)[0]


@pytest.mark.parametrize("nest", ["grad", "vjp", "jacrev", "vmap of grad", "vmap"])
def test_a_backward_that_runs_its_forward_again(nest):
    torch.testing.assert_close(NESTS[nest](Recomputed.apply), NESTS[nest](lambda x: x.sin() * 2))


# requires_grad_() on tensors that are not differentiated


@in_each_nest
def test_requires_grad_false_on_a_tensor_without_grad(nest):
    same(nest, lambda x: x.detach().requires_grad_(False) * x, lambda x: x.detach() * x)


class Ones(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight


@in_each_nest
def test_module_created_inside_may_be_frozen(nest):
    def f(x):
        module = Ones().requires_grad_(False)
        assert not module.weight.requires_grad
        return module(x)

    same(nest, f, lambda x: x * 1)


@pytest.mark.parametrize("nest", ["vmap", "jvp", "grad", "vmap of grad", "jvp of vmap"])
def test_an_ensemble_made_inside(nest):
    nets = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)]

    def f(x):
        params, buffers = tl.stack_module_state(nets)
        call = tl.vmap(lambda p, b: tl.functional_call(nets[0], (p, b), (x,)))
        return call(params, buffers).sum(0)

    torch.testing.assert_close(
        torch.utils._pytree.tree_map(torch.Tensor.detach, NESTS[nest](f)),
        torch.utils._pytree.tree_map(
            torch.Tensor.detach, NESTS[nest](lambda x: nets[0](x) + nets[1](x))
        ),
    )


def test_the_callers_tensors_are_left_as_they_are():
    xs = XS.clone()
    tl.vmap(lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0])(xs)
    tl.functionalize(lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0])(xs)
    tl.grad(lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0].sum())(xs)
    assert not xs.requires_grad
    assert xs.grad_fn is None


def test_a_gradient_by_a_tensor_from_outside():
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def f(x):
        (gradient,) = torch.autograd.grad((w**2 * 3).sum(), w)
        return (gradient * x).sum()

    torch.testing.assert_close(tl.grad(f)(X), 6 * ONES)
    torch.testing.assert_close(tl.jvp(f, (X,), (ONES,))[1], torch.tensor(18.0).double())
    torch.testing.assert_close(tl.vmap(f)(XS), 6 * XS.sum(-1))


def test_batched_tensor_reports_requires_grad():
    xs = XS.clone().requires_grad_()
    seen = []
    tl.vmap(lambda x: seen.append((x.requires_grad, (x * 2).requires_grad)) or x)(xs)
    tl.vmap(lambda x: seen.append((x.requires_grad, (x * 2).requires_grad)) or x)(XS)
    assert seen == [(True, True), (False, False)]


# Errors

REFUSED = {
    "an argument is made a constant": (
        lambda: tl.grad(lambda x: (x.requires_grad_(False) * x).sum())(X),
        "requires_grad_(False) on a tensor that a transform, or an enclosing one, differentiates "
        "with respect to: its derivative would be lost. Use x.detach()",
    ),
    "under vmap too": (
        lambda: tl.grad(lambda xs: tl.vmap(lambda x: x.requires_grad_(False) * x)(xs).sum())(XS),
        "requires_grad_(False) on a tensor that a transform",
    ),
    "by the setter": (
        lambda: tl.grad(lambda x: (setattr(x, "requires_grad", False), x.sum())[1])(X),
        "requires_grad_(False) on a tensor that a transform",
    ),
    "whole numbers": (
        lambda: tl.vmap(lambda x: torch.ones(3, dtype=torch.int64).requires_grad_() * x)(XS),
        "requires_grad_() on a tensor of dtype torch.int64: only floating-point and complex "
        "tensors have gradients.",
    ),
    "one input for all samples": (
        lambda: tl.vmap(
            lambda x: torch.autograd.grad(
                (x * (w := torch.ones(3, dtype=torch.float64).requires_grad_())).sum(), w
            )[0]
        )(XS),
        "vmap (level 1) can't run torch.autograd.grad with respect to input 0: it is not batched "
        "and the outputs are, so the gradients of all samples would be summed.",
    ),
    "a graph of a gradient by a tensor from outside": (
        lambda: outside("grad", with_graph=True),
        "torch.autograd.grad inside grad (level 1), of a value that it differentiates, with "
        "respect to a tensor from outside: the gradient's own derivative would be lost.",
    ),
    "a tangent of it, with a graph": (
        lambda: outside("jvp", with_graph=True),
        "torch.autograd.grad inside jvp (level 1), of a value that it differentiates, with respect "
        "to a tensor from outside",
    ),
    "a gradient by a tensor from outside, which may be a part of it": (
        lambda: outside("grad"),
        "torch.autograd.grad inside grad (level 1), of a value that it differentiates, with "
        "respect to a tensor from outside: the gradient's own derivative would be lost.",
    ),
    "a tangent of it": (
        lambda: outside("jvp"),
        "torch.autograd.grad inside jvp (level 1), of a value that it differentiates",
    ),
    "backward": (
        lambda: tl.grad(lambda x: (x.detach().requires_grad_().sum().backward(), x.sum())[1])(X),
        "grad (level 1) can't run backward(), which adds to the .grad of tensors",
    ),
    "backward under vmap": (
        lambda: tl.vmap(lambda x: (x.detach().requires_grad_().sum().backward(), x)[1])(XS),
        "vmap (level 1) can't run backward(), which adds to the .grad of tensors",
    ),
}


def outside(transform, with_graph=False):
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def f(x):
        return torch.autograd.grad((x * w**2).sum(), w, create_graph=with_graph)[0].sum()

    return tl.grad(f)(X) if transform == "grad" else tl.jvp(f, (X,), (ONES,))


@pytest.mark.parametrize("name", REFUSED)
def test_losing_a_derivative_is_rejected(name):
    call, words = REFUSED[name]
    before = ambient()
    with pytest.raises(TransformError) as caught:
        call()
    assert str(caught.value).startswith(f"torchlayers: {words}")
    assert "test_local_gradients.py" in str(caught.value)
    assert ambient() == before


def by_a_shift(x):
    shift = torch.ones_like(x).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad((x + shift).sin().sum(), shift, create_graph=True)[0]


@pytest.mark.parametrize(
    "inside",
    [
        lambda f: tl.jet(f, (X,), ((ONES,),)),
        lambda f: tl.laplacian(f)(X),
        lambda f: tl.vmap(lambda x: tl.jet(f, (x,), ((ONES,),)))(XS),
        lambda f: tl.jet(lambda x: tl.jet(f, (x,), ((ONES,),))[0], (X,), ((ONES,),)),
    ],
    ids=["jet", "laplacian", "vmap of jet", "jet of jet"],
)
def test_a_gradient_inside_a_layer_in_python_is_refused(inside):
    with pytest.raises(TransformError, match=r"Use torchlayers\.grad or vjp"):
        inside(by_a_shift)
    assert tl.current_stack() == ()
