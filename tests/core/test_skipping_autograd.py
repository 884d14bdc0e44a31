"""Operators skip autograd only where it has nothing to record."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.profiler import profile
from torch.testing import assert_close

import torchlayers as tl

Transform = Callable[[Tensor], Tensor]

X = torch.tensor([[0.3, 1.2, 0.7], [0.9, 0.1, 0.5]], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return (x.sin() * x).softmax(-1) @ x


TRANSFORMS: dict[str, Transform] = {
    "vmap": lambda x: tl.vmap(f)(x),
    "grad": lambda x: tl.grad(lambda x: tl.vmap(f)(x).sum())(x),
    "jvp": lambda x: tl.jvp(tl.vmap(f), (x,), (x.cos(),))[1],
    "vjp": lambda x: tl.vjp(f, x[0])[1](x[0].sum())[0],
}
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())


@transforms
def test_autograd_around_records(transform: Transform) -> None:
    assert torch.autograd.gradcheck(transform, X.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(transform, X.clone().requires_grad_())


@transforms
def test_forward_ad_around_sees_it(transform: Transform) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X.exp())
        found = forward_ad.unpack_dual(transform(dual)).tangent
    step = 1e-6
    expected = (transform(X + step * X.exp()) - transform(X - step * X.exp())) / (2 * step)
    assert_close(found, expected, rtol=1e-6, atol=1e-8)


@transforms
def test_results_can_be_recorded_afterwards(transform: Transform) -> None:
    result = transform(X).requires_grad_()
    (result * result).sum().backward()
    assert_close(result.grad, 2 * result.detach())


@transforms
def test_without_recording_it_is_the_same(transform: Transform) -> None:
    tracked = X.clone().requires_grad_()
    with torch.no_grad():
        found = transform(tracked)
    assert not found.requires_grad
    assert_close(found, transform(X))


def test_a_view_stays_a_view_to_autograd() -> None:
    x = X.clone()
    row = tl.vmap(lambda row: row[1])(x)
    assert row._base is x
    version = x._version
    row.zero_()
    assert x._version == version + 1
    assert_close(x[:, 1], torch.zeros(2, dtype=torch.float64))


def test_a_profiler_sees_the_operators() -> None:
    with profile() as profiled:
        tl.vmap(torch.sin)(X)
    assert "aten::sin" in {event.name for event in profiled.events()}


def slope(x: Tensor) -> Tensor:
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(inner.sin().sum(), inner)
    return gradient


@pytest.fixture
def slope_operator():
    """An operator whose kernel uses autograd itself."""
    library = torch.library.Library("torchlayers_slope", "DEF")
    library.define("slope(Tensor x) -> Tensor")
    library.impl("slope", slope, "CompositeExplicitAutograd")
    yield torch.ops.torchlayers_slope.slope
    library._destroy()


def test_a_users_kernel_may_use_autograd(slope_operator) -> None:
    def f(x: Tensor) -> Tensor:
        return slope_operator(x.detach()) * x

    assert_close(tl.jvp(f, (X,), (X,))[0], X.cos() * X)
    assert_close(tl.grad(lambda x: f(x).sum())(X), X.cos())


def test_a_users_rule_may_use_autograd() -> None:
    @torch.library.custom_op("torchlayers_tests::cubed", mutates_args=())
    def cubed(x: Tensor) -> Tensor:
        return x**3

    @tl.extend.jvp_rule(torch.ops.torchlayers_tests.cubed.default)
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((inner**3).sum(), inner)
        return cubed(x), gradient * t

    assert_close(tl.jvp(cubed, (X,), (X,)), (X**3, 3 * X**3))
