"""Functions that write, and what autograd has saved of functional tensors."""

import functools

import pytest
import torch
import torch.func
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.transforms.functionalize import X, removes


class Tripled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.mul_(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def tripled_and_read(x):
    y = x * x
    Tripled.apply(y)
    return (y * x).sum()


@removes
def test_writes_to_a_sample_are_visible(remove):
    functionalize = functools.partial(tl.functionalize, remove=remove)
    x = X.double()
    torch.testing.assert_close(tl.vmap(functionalize(tripled_and_read))(x), 3 * (x**3).sum(1))
    for nest in (
        tl.vmap(functionalize(tl.grad(tripled_and_read))),
        tl.vmap(tl.grad(functionalize(tripled_and_read))),
        functionalize(tl.vmap(tl.grad(tripled_and_read))),
    ):
        torch.testing.assert_close(nest(x), 9 * x**2)


def test_packed_functional_tensor_keeps_its_history():
    gradient = tl.functionalize(tl.grad(lambda x: (x**3).sum()))
    x = X.double().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        result = gradient(x)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 6 * x.detach())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_torchs_checkpoint_around_it(use_reentrant):
    gradient = tl.functionalize(tl.grad(lambda x: (x**3).sum()))
    x = X.double().requires_grad_()
    checkpoint(gradient, x, use_reentrant=use_reentrant).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


class OldSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class NewSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def written_before(sine, x):
    y = x.clone()
    y.mul_(x)
    return sine(y).sum()


def written_through_a_view(sine, x):
    y = x * x
    y[1:].mul_(2)
    return sine(y).sum()


def a_view_of_what_is_written(sine, x):
    y = x * x
    row = y[1:]
    y.mul_(x)
    return sine(row).sum()


def written_after(sine, x):
    y = sine(x * x)
    y.add_(x)
    return (y * x).sum()


def kept_on_cpu(f):
    def call(x):
        with save_on_cpu():
            return f(x)

    return call


SINES = {"sin": torch.sin, "an old Function": OldSine.apply, "a Function": NewSine.apply}
HOOKED = {
    "torch's checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
    "torch's reentrant checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=True),
    "checkpoint": tl.checkpoint,
    "save_on_cpu": kept_on_cpu,
}
HOOKED_NESTS = {
    "functionalize(grad)": lambda functionalize, f: functionalize(tl.grad(f)),
    "functionalize(jacrev(grad))": lambda functionalize, f: functionalize(tl.jacrev(tl.grad(f))),
    "functionalize(vmap(grad))": lambda functionalize, f: (
        lambda x: functionalize(tl.vmap(tl.grad(f)))(torch.stack((x, x.cos())))
    ),
    "grad(functionalize(grad))": lambda functionalize, f: tl.grad(
        lambda x: functionalize(tl.grad(f))(x).sum()
    ),
    "grad(functionalize)": lambda functionalize, f: tl.grad(functionalize(f)),
}


@pytest.mark.sweep
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("sine", SINES.values(), ids=SINES)
@pytest.mark.parametrize(
    "f", [written_before, written_through_a_view, a_view_of_what_is_written, written_after]
)
@pytest.mark.parametrize("hooked", HOOKED.values(), ids=HOOKED)
@pytest.mark.parametrize("nest", HOOKED_NESTS.values(), ids=HOOKED_NESTS)
def test_saved_functional_tensors_that_were_written(nest, hooked, f, sine, remove):
    x = X.double()
    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = nest(lambda f: f, lambda x: f(sine, x))(x)
    found = nest(functionalize, hooked(lambda x: f(sine, x)))(x)
    torch.testing.assert_close(found, expected)
