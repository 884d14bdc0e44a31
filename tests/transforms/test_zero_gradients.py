"""Gradients that are zeros because an operator has no derivative: a warning says so."""

import warnings

import pytest
import torch

import torchlayers as tl

X = torch.tensor([0.3, 0.7, -0.4])
EDGES = torch.tensor([0.0, 0.5])

# By operator, and the operator that is named.
WITHOUT_DERIVATIVE = {
    "an index": (lambda x: x.argmax(), "aten::argmax"),
    "a number of it": (lambda x: x.argmax().float(), "aten::argmax"),
    "a table's entry": (lambda x: EDGES[x[:2].argmin()], "aten::argmin"),
    "a count": (lambda x: (x > 0).sum(), "aten::gt.Scalar"),
    "an accuracy": (lambda x: (x > EDGES[1]).float().mean(), "aten::gt.Tensor"),
    "a choice of constants": (lambda x: torch.where(x < 0, 1.0, 2.0).sum(), "aten::lt.Scalar"),
    "a bin": (lambda x: torch.bucketize(x, EDGES).sum() * 1.0, "aten::bucketize.Tensor"),
    "whole numbers": (lambda x: x.long().sum() * 1.0, "aten::_to_copy"),
    "the first": (lambda x: (x.argmax() + (x > 0).sum()) * 1.0, "aten::argmax"),
}
TRANSFORMS = {
    "grad": lambda f: tl.grad(f)(X),
    "grad_and_value": lambda f: tl.grad_and_value(f)(X)[0],
    "vmap of grad": lambda f: tl.vmap(tl.grad(f))(X[None])[0],
    "grad inside vmap's function": lambda f: tl.vmap(lambda x: tl.grad(f)(x) * 2)(X[None])[0],
}


@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_operator_without_a_derivative_is_named(name, transform):
    f, operator = WITHOUT_DERIVATIVE[name]
    with pytest.warns(UserWarning) as caught:
        gradient = TRANSFORMS[transform](f)
    assert torch.equal(gradient, torch.zeros(3))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    api = "grad_and_value" if transform == "grad_and_value" else "grad"
    assert str(caught[0].message) == (
        f"torchlayers: {api}: the gradients of <lambda> are zeros: its result depends on the "
        f"arguments by no operator that has a derivative, and {operator} has none. Use a smooth "
        "function instead (softmax for argmax); if zeros are intended, call the operator with "
        "x.detach()."
    )


@pytest.mark.parametrize("api", ["vjp", "jacrev", "hessian"])
def test_the_other_reverse_transforms(api):
    def f(x):
        return x.argmax().float()

    calls = {
        "vjp": lambda: tl.vjp(f, X)[1](torch.tensor(1.0))[0],
        "jacrev": lambda: tl.jacrev(f)(X),
        "hessian": lambda: tl.hessian(f)(X),
    }
    with pytest.warns(UserWarning, match=rf"torchlayers: {api}: the gradients of f are zeros"):
        assert torch.count_nonzero(calls[api]()) == 0


def test_it_is_said_once_for_a_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            tl.grad(lambda x: x.argmax())(X)
    assert len(caught) == 1


class Relu(torch.autograd.Function):
    """Whose derivative compares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0)

    @staticmethod
    def jvp(ctx, t):
        return t * (ctx.saved_tensors[0] > 0)


SILENT = {
    "a constant": lambda x: torch.tensor(1.0),
    "a detached argument": lambda x: x.detach().argmax() * 1.0,
    "under no_grad": lambda x: torch.no_grad()(lambda x: x.argmax() * 1.0)(x),
    "steps": lambda x: x.round().sum(),
    "a tensor like it": lambda x: torch.zeros_like(x).sum(),
    "a choice": lambda x: torch.where(x > 0, x, 0).sum(),
    "an index of it": lambda x: x[x.argmax()],
    "the derivative of relu": lambda x: tl.grad(lambda x: x.relu().sum())(x).sum(),
    "the tangent of relu": lambda x: tl.jvp(torch.relu, (x,), (torch.ones_like(x),))[1].sum(),
    "the derivative of a choice": lambda x: tl.grad(lambda x: SILENT["a choice"](x))(x).sum(),
    "the derivative of a Function": lambda x: tl.grad(lambda x: Relu.apply(x).sum())(x).sum(),
    "a Function's tangent": lambda x: tl.jvp(Relu.apply, (x,), (torch.ones_like(x),))[1].sum(),
    "plain autograd inside": lambda x: torch.autograd.grad(x.relu().sum(), x)[0].sum(),
}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("transform", [tl.grad, tl.jacrev, lambda f: tl.vmap(tl.grad(f))])
def test_other_zeros_are_silent(name, transform):
    x = X[None] if getattr(transform, "__name__", "") == "<lambda>" else X
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(SILENT[name])(x)


def test_a_rule_that_compares_is_silent():
    """It runs after vjp's layer was left, so that grad's is the innermost."""

    def largest(x):
        return torch.segment_reduce(x, "max", lengths=torch.tensor([3]))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.grad(lambda x: tl.vjp(largest, x)[1](torch.ones(1))[0].sum())(X)


def test_a_whole_number_that_is_a_constant_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(tl.grad(lambda x: torch.tensor(1))(X), torch.zeros(3))


def test_forward_mode_is_silent():
    """The tangent of a constant is zero: that is no surprise there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tangent = tl.jvp(lambda x: x.argmax().float(), (X,), (X,))[1]
    assert torch.equal(tangent, torch.tensor(0.0))
