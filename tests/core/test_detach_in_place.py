"""x.detach_() cuts x off at all levels, as x.detach() does, and nothing else."""

import itertools

import pytest
import torch

import torchlayers as tl

X = torch.tensor([[0.3, 0.7], [1.1, -0.4]], dtype=torch.float64)
SAMPLES = torch.tensor([1.0, 2.0], dtype=torch.float64)

TRANSFORMS = {
    "grad": tl.grad,
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "jet": lambda f: lambda x: tl.jet(f, (x,), ((x * x,),))[1][0],
    "vmap": lambda f: lambda x: tl.vmap(lambda sample: f(x * sample))(SAMPLES),
    "vmap of a captured tensor": lambda f: lambda x: tl.vmap(lambda sample: f(x) * sample)(SAMPLES),
    "functionalize": tl.functionalize,
    "without views": lambda f: tl.functionalize(f, remove="mutations_and_views"),
}
NESTS = [
    nest
    for depth in (1, 2, 3)
    for nest in itertools.product(TRANSFORMS, repeat=depth)
    if sum(name in ("functionalize", "without views") for name in nest) < 2
]


def summed(f):
    return lambda x: f(x).sum()


def of(detach):
    """A function whose graph has saved what is detached later."""

    def f(x):
        y = x.exp() * 1.5
        before = (y * y).sum()
        y = detach(y)
        return before + (y * x * x).sum()

    return f


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS, ids=" of ".join)
def test_it_is_as_detach(nest):
    in_place, apart = of(torch.Tensor.detach_), of(torch.Tensor.detach)
    for name in reversed(nest):
        in_place = summed(TRANSFORMS[name](in_place))
        apart = summed(TRANSFORMS[name](apart))
    torch.testing.assert_close(in_place(X), apart(X))


def written_after(x):
    y = x.exp()
    y.detach_()
    y.add_(x)
    return (y * y).sum()


def written_in_part(x):
    y = torch.zeros_like(x)
    y[0] = x[1]
    y.detach_()
    y[1] = x[0] * 2
    return (y**3).sum()


@pytest.mark.parametrize(
    "functionalize", [lambda f: f, tl.functionalize], ids=["", "functionalize"]
)
@pytest.mark.parametrize("f", [written_after, written_in_part])
def test_what_is_written_afterwards_has_derivatives(f, functionalize):
    leaf = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(leaf), leaf)
    f = functionalize(f)
    torch.testing.assert_close(tl.grad(f)(X), expected)
    torch.testing.assert_close(tl.jacfwd(f)(X), expected)
    torch.testing.assert_close(tl.vmap(tl.grad(f))(X[None])[0], expected)
    torch.testing.assert_close(tl.grad(lambda x: tl.vmap(f)(x[None]).sum())(X), expected)
