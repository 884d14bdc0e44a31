"""Derivatives have the digits of the result's dtype, also where an operand is narrower.

The reference has the same numbers in float64.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from tests.support.narrow_operands import NARROW, OPERATORS

X = torch.tensor([0.31, 0.47], dtype=torch.float64)


def summed(f):
    return lambda x: f(x).sum()


def pushed_twice(f):
    slope = lambda x: tl.jvp(f, (x,), (x.cos(),))[1]  # noqa: E731
    return lambda x: tl.jvp(slope, (x,), (x.sin(),))[1]


TRANSFORMS = {
    "grad": lambda f: tl.grad(summed(f)),
    "vmap(grad)": lambda f: lambda x: tl.vmap(tl.grad(summed(f)))(torch.stack([x, x.sin()])),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "jvp of jvp": pushed_twice,
    "hessian": lambda f: tl.hessian(summed(f)),
    "jacrev of jacrev": lambda f: tl.jacrev(tl.jacrev(summed(f))),
    "compiled": lambda f: tl.compile(tl.grad(summed(f)), backend="replay"),
    "jet": lambda f: lambda x: torch.stack(tl.jet(f, (x,), ((x.cos(), x.sin()),))[1]),
    "laplacian": lambda f: tl.laplacian(summed(f)),
}


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("narrow", NARROW.values(), ids=NARROW)
def test_derivatives_with_a_narrow_operand(narrow: Tensor, operator: str, transform: str) -> None:
    def derivative(y: Tensor) -> Tensor:
        return TRANSFORMS[transform](lambda x: OPERATORS[operator](x, y))(X)

    assert_exact(derivative(narrow), derivative(narrow.double()))


def assert_exact(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


WITH_NUMBERS = {
    "an int": lambda x: x**3 / 3,
    "a float": lambda x: x**3 / 3.7,
    "in place": lambda x: (x**3).div_(3),
    "below": lambda x: 3 / (x * x + 2),
    "a tensor": lambda x: x**3 / torch.tensor(3),
    "an array": lambda x: x**3 / torch.tensor([3, 7]),
    "single precision": lambda x: x**3 / torch.tensor([3.0, 7.0]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_laplacian_of_quotients(name: str) -> None:
    f = summed(WITH_NUMBERS[name])
    expected = tl.hessian(f)(X).trace()
    value, slope = tl.linearize(tl.laplacian(f), X)
    with Nothing():  # it is called with numbers in place of tensors that hold one
        in_a_mode = tl.laplacian(f)(X)
    for found in (tl.laplacian(f)(X), tl.compile(tl.laplacian(f))(X), value, in_a_mode):
        assert_exact(found, expected)
    assert_exact(slope(X), tl.jvp(tl.laplacian(f), (X,), (X,))[1])


@pytest.mark.parametrize("target", [torch.tensor([1, 0]), torch.tensor([True, False])])
@pytest.mark.parametrize("transform", [*TRANSFORMS, "vmap"])
@pytest.mark.parametrize("weighted", [False, True])
def test_logits_with_integer_targets(weighted: bool, transform: str, target: Tensor) -> None:
    """torch's kernel refuses them, and its fake kernel gives an integer loss."""
    weights = {"weight": torch.tensor([0.5, 2.0]), "pos_weight": torch.tensor([3, 1])}

    def derivative(target: Tensor) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            options = weights if weighted else {}
            return F.binary_cross_entropy_with_logits(x, target, reduction="none", **options)

        if transform == "vmap":
            return tl.vmap(loss)(torch.stack([X, X.sin()]))
        return TRANSFORMS[transform](loss)(X)

    assert_exact(derivative(target), derivative(target.double()))
