"""Errors for invalid Functions and their messages; state is restored after an error."""

import pytest
import torch
import torch.func
from torch.autograd import Function
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.autograd_function.corpus import Batchable, ExpInPlace, OnceDifferentiable, Square
from tests.autograd_function.corpus import saves_inputs as keeps_inputs
from tests.support.calls import ambient
from torchlayers.errors import FunctionError, MissingDerivativeError

X = torch.tensor([0.5, 1.0, 2.0])
WRITTEN = torch.ones(3)


class Double(Function):
    setup_context = staticmethod(keeps_inputs)

    @staticmethod
    def forward(x):
        return x * 2


class WritesUnsaid(Double):
    @staticmethod
    def forward(x):
        return x.add_(1) * 2


class Both(Square):
    @staticmethod
    def vmap(info, in_dims, x):
        return Square.apply(x), 0


def returning(result):
    """Returns Double with a vmap staticmethod that returns `result`."""
    return type("Double", (Double,), {"vmap": staticmethod(lambda info, in_dims, x: result)})


class TwoGradients(Square):
    @staticmethod
    def backward(ctx, g):
        return g, g


class NoGradient(Square):
    @staticmethod
    def backward(ctx, g):
        return ()


def gradient_of(result):
    """Returns Square with a backward that returns `result`."""
    return type("Square", (Square,), {"backward": staticmethod(lambda ctx, g: result)})


def tangent_of(result):
    """Returns Square with a jvp that returns `result`."""
    return type("Square", (Square,), {"jvp": staticmethod(lambda ctx, t: result)})


class BackwardAndVjp(Square):
    @staticmethod
    def vjp(ctx, g):
        return g


class Captures(Batchable):
    captured: torch.Tensor

    @staticmethod
    def forward(x):
        return x * Captures.captured

    @staticmethod
    def backward(ctx, g):
        return g


def capturing(tf, x):
    Captures.captured = x
    return Captures.apply(x * 2)


class OldWithVmap(Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def vmap(info, in_dims, x):
        return OldWithVmap.apply(x), in_dims[0]


class BatchedTangent(Batchable):
    """Its tangent depends on y, but its output does not."""

    @staticmethod
    def forward(x, y):
        return x * 2

    @staticmethod
    def jvp(ctx, tx, ty):
        return 2 * tx + ctx.saved_tensors[1]


def summed_grad(function):
    return lambda tf: tf.grad(lambda x: function.apply(x).sum())(X)


CASES = {
    "vmap: neither rule nor flag": (
        lambda tf: tf.vmap(Double.apply)(X),
        "vmap does not know how to batch Double. If its methods use only torch operators, set "
        "Double.generate_vmap_rule = True; otherwise define a vmap staticmethod.",
    ),
    "vmap: both": (
        lambda tf: tf.vmap(Both.apply)(X),
        "Both has both a vmap staticmethod and generate_vmap_rule=True, so vmap can't tell which "
        "to use. Delete one.",
    ),
    "vmap: not a tuple": (
        lambda tf: tf.vmap(returning(X).apply)(X),
        "Double.vmap must return a tuple (output, out_dims), got Tensor.",
    ),
    "vmap: three": (
        lambda tf: tf.vmap(returning((X, 0, 0)).apply)(X),
        "Double.vmap must return a tuple (output, out_dims), got a tuple of 3.",
    ),
    "vmap: out_dims of another structure": (
        lambda tf: tf.vmap(returning((X, (0, 0))).apply)(X),
        "Double.vmap returned out_dims that don't match its output: out_dims are (*, *), the "
        "output is * (* is a leaf).",
    ),
    "vmap: out_dim out of range": (
        lambda tf: tf.vmap(returning((X, 1)).apply)(X),
        "Double.vmap returned out_dim 1 for output 0, of shape (3,): it must be None or an int in "
        "[-1, 0].",
    ),
    "vmap: out_dim no int": (
        lambda tf: tf.vmap(returning((X, "0")).apply)(X),
        "Double.vmap returned out_dim '0' for output 0, of shape (3,): it must be None or an int "
        "in [-1, 0].",
    ),
    "backward: too many gradients": (
        summed_grad(TwoGradients),
        "TwoGradients.backward returned 2 gradients for 1 input of forward. Return one for each, "
        "or None for no gradient.",
    ),
    "backward: too few gradients": (
        summed_grad(NoGradient),
        "NoGradient.backward returned 0 gradients for 1 input of forward. Return one for each, or "
        "None for no gradient.",
    ),
    "backward under vmap: too many gradients": (
        lambda tf: tf.grad(lambda x: tf.vmap(TwoGradients.apply)(x).sum())(X),
        "TwoGradients.backward returned 2 gradients for 1 input of forward. Return one for each, "
        "or None for no gradient.",
    ),
    "backward: a number": (
        summed_grad(gradient_of(2.0)),
        "Square.backward returned a float for input 0 of forward. Return a tensor, or None for no "
        "gradient; for several inputs, a tuple of these.",
    ),
    "backward: a list": (
        summed_grad(gradient_of([X])),
        "Square.backward returned a list for input 0 of forward. Return a tensor, or None for no "
        "gradient; for several inputs, a tuple of these.",
    ),
    "backward under vmap: a list": (
        lambda tf: tf.grad(lambda x: tf.vmap(gradient_of([X]).apply)(x).sum())(X),
        "Square.backward returned a list for input 0 of forward. Return a tensor, or None for no "
        "gradient; for several inputs, a tuple of these.",
    ),
    "backward: another shape": (
        summed_grad(gradient_of(torch.ones(2))),
        "Square.backward returned a gradient of shape [2] for input 0 of forward, whose shape is "
        "[3]. Return a gradient of the input's shape.",
    ),
    "jvp: nothing": (
        lambda tf: tf.jvp(tangent_of(None).apply, (X,), (X,)),
        "Square.jvp returned None for an output that has a tangent. Return a tensor (zeros if the "
        "output does not depend on the inputs), or mark the output with "
        "ctx.mark_non_differentiable.",
    ),
    "jvp: a number": (
        lambda tf: tf.jvp(tangent_of(2.0).apply, (X,), (X,)),
        "Square.jvp returned a float for output 0 of forward. Return a tensor, or None for no "
        "tangent; for several outputs, a tuple of these.",
    ),
    "jvp: too many tangents": (
        lambda tf: tf.jvp(tangent_of((X, X)).apply, (X,), (X,)),
        "Square.jvp returned a number of tangents that differs from the number of forward's "
        "outputs. Return one for each.",
    ),
    "jvp: another shape": (
        lambda tf: tf.jvp(tangent_of(torch.ones(2)).apply, (X,), (X,)),
        "Square.jvp returned a tangent whose shape differs from its output's. Return a tangent of "
        "the output's shape.",
    ),
    "backward and vjp": (
        summed_grad(BackwardAndVjp),
        "BackwardAndVjp has both a backward and a vjp, which are two names for the same method. "
        "Delete one.",
    ),
    "backward: none": (
        summed_grad(Double),
        "Double has no backward staticmethod, which reverse mode needs. Define one, or call it on "
        "x.detach() if its gradient is not needed.",
    ),
    "jvp: none": (
        lambda tf: tf.jvp(Double.apply, (X,), (X,)),
        "Double has no jvp staticmethod. You must implement the jvp function for custom "
        "autograd.Function to use it with forward mode AD. Define one, or use reverse mode (vjp, "
        "jacrev, or jacrev(jacrev(f)) for hessian(f)) instead of jvp, jacfwd, hessian and "
        "linearize.",
    ),
    "captured": (
        lambda tf: tf.grad(lambda x: capturing(tf, x).sum())(X),
        "Captures.forward uses a captured tensor of an enclosing transform. Its gradient would be "
        "lost. Pass the tensor to Captures.apply as an argument.",
    ),
    "captured under vmap": (
        lambda tf: tf.grad(
            lambda x: setattr(Captures, "captured", x) or tf.vmap(Captures.apply)(x * 2).sum()
        )(X),
        "Captures.forward uses a captured tensor of an enclosing transform. Its gradient would be "
        "lost. Pass the tensor to Captures.apply as an argument.",
    ),
    "dirty and captured": (
        lambda tf: tf.grad(lambda x: ExpInPlace.apply(WRITTEN).sum() * x.sum())(X),
        "ExpInPlace writes to a tensor (mark_dirty) from outside the transform: its gradient would "
        "be silently wrong. Pass it to the transformed function as an argument, or clone it.",
    ),
    "batched tangent of an output that is not": (
        lambda tf: tf.jvp(tf.vmap(BatchedTangent.apply, (None, 0)), (X, X), (X, X)),
        "a jvp staticmethod returned a batched tangent for an output that is not batched. The "
        "output must depend on everything that its tangent depends on.",
    ),
    "a write that is not marked, traced": (
        lambda tf: make_fx(tf.functionalize(lambda x: WritesUnsaid.apply(x * 1)))(X),
        "WritesUnsaid.forward writes to its input 0 and does not return it: the write would be "
        "missing from the graph that is traced. Return the input, and mark it with "
        "ctx.mark_dirty; or write to a copy.",
    ),
    "once differentiable, twice": (
        lambda tf: tf.grad(lambda x: tf.grad(lambda y: OnceDifferentiable.apply(y).sum())(x).sum())(
            X
        ),
        "OnceDifferentiable.backward is marked @once_differentiable, so it can't be "
        "differentiated. Remove the decorator if the method consists of differentiable operators.",
    ),
    "old-style, in torch.func's vmap": (
        lambda tf: torch.func.vmap(tf.vmap(OldWithVmap.apply))(X[None]),
        "OldWithVmap has no setup_context, which torch.func's transforms require. Give it one, or "
        "use torchlayers' transforms instead of torch.func's.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_error_messages(name):
    call, message = CASES[name]
    before = ambient()
    with pytest.raises(FunctionError) as caught:
        call(tl)
    assert str(caught.value) == f"torchlayers: {message}"
    assert ambient() == before


# Cases where torch.func silently returns a wrong result instead of an error.
SILENT = {
    "vmap: out_dim out of range": "any out_dim for an output that is its input",
    "vmap: out_dim no int": "any out_dim for an output that is its input",
    "captured": "the gradient of the captured tensor is lost",
    "dirty and captured": "the captured tensor is written to",
    "once differentiable, twice": "the second derivative is zero",
    "backward under vmap: too many gradients": "those too many are dropped",
    "backward and vjp": "backward is taken",
    "batched tangent of an output that is not": "the tangent has not its output's shape",
}


@pytest.mark.parametrize("name", CASES)
def test_torch_func_raises_or_is_silently_wrong(name):
    call, _ = CASES[name]
    if name in SILENT:
        call(torch.func)
    else:
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            call(torch.func)


def test_missing_derivatives_are_not_implemented_errors():
    assert issubclass(MissingDerivativeError, NotImplementedError)
    assert issubclass(MissingDerivativeError, FunctionError)


def test_once_differentiable_function_can_be_differentiated_once():
    expected = torch.func.vmap(torch.func.grad(torch.exp))(X)
    torch.testing.assert_close(tl.vmap(tl.grad(OnceDifferentiable.apply))(X), expected)
    torch.testing.assert_close(tl.jacrev(OnceDifferentiable.apply)(X), torch.diag(expected))


def test_exception_in_any_method_restores_state():
    def fail(*args):
        raise ZeroDivisionError

    before = ambient()
    for method in ("forward", "setup_context", "backward", "jvp"):
        failing = type("Failing", (Square,), {method: staticmethod(fail)})
        for transform in (
            lambda f: tl.grad(lambda x: f.apply(x).sum())(X),
            lambda f: tl.jvp(f.apply, (X,), (X,)),
            lambda f: tl.vmap(tl.grad(f.apply))(X),
            lambda f: tl.grad(lambda x: tl.vmap(f.apply)(x).sum())(X),
            lambda f: tl.jvp(tl.vmap(f.apply), (X,), (X,)),
        ):
            try:
                transform(failing)
            except ZeroDivisionError:
                pass
            else:
                assert method in ("backward", "jvp")
            assert ambient() == before
