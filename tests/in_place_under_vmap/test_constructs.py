"""Every construct, alone and in all two-deep nests, against a loop over the samples."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.in_place_under_vmap.constructs import CONSTRUCTS, Sample
from tests.in_place_under_vmap.reference import Function, gradient, hessian, loop, same, total

X = torch.tensor(
    [[0.3, -0.7, 1.1], [-1.2, 0.4, 0.9], [2.0, 1.0, -0.1], [-0.2, -0.9, -0.4]], dtype=torch.float64
)
TANGENTS = X.flip(0) * 0.5
PAIRS = torch.stack([X, X.flip(1)])

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.fixture(params=CONSTRUCTS.values(), ids=CONSTRUCTS.keys())
def f(request: pytest.FixtureRequest) -> Sample:
    construct: Sample = request.param
    return construct


def directional(number: Function) -> Function:
    return lambda x, t: (number(x), (gradient(number)(x) * t).sum())


def test_vmap(f: Sample) -> None:
    same(tl.vmap(f)(X), loop(f, X))
    same(tl.vmap(f, in_dims=1, chunk_size=3)(X.t()), loop(f, X))
    assert tl.current_stack() == ()


def test_vmap_of_vmap(f: Sample) -> None:
    expected = loop(lambda pair: loop(f, pair), PAIRS)
    same(tl.vmap(tl.vmap(f))(PAIRS), expected)
    same(tl.vmap(tl.vmap(f, in_dims=1), in_dims=2)(PAIRS.permute(2, 1, 0)), expected)


def test_vmap_of_grad(f: Sample) -> None:
    same(tl.vmap(tl.grad(total(f)))(X), loop(gradient(total(f)), X))


def test_grad_of_vmap(f: Sample) -> None:
    ours = tl.grad(lambda batch: tl.vmap(total(f))(batch).sum())(X)
    same(ours, loop(gradient(total(f)), X))


def test_vmap_of_jvp(f: Sample) -> None:
    ours = tl.vmap(lambda x, t: tl.jvp(total(f), (x,), (t,)))(X, TANGENTS)
    same(ours, loop(directional(total(f)), X, TANGENTS))


def test_jvp_of_vmap(f: Sample) -> None:
    ours = tl.jvp(tl.vmap(total(f)), (X,), (TANGENTS,))
    same(ours, loop(directional(total(f)), X, TANGENTS))


@pytest.mark.sweep
def test_jacobians_and_hessians(f: Sample) -> None:
    expected = loop(gradient(total(f)), X)
    same(tl.vmap(tl.jacrev(total(f)))(X), expected)
    same(tl.vmap(tl.jacfwd(total(f)))(X), expected)
    same(tl.vmap(tl.hessian(total(f)))(X), loop(hessian(total(f)), X))
    same(tl.jacfwd(total(f))(X[0]), expected[0])
    same(tl.hessian(total(f))(X[0]), hessian(total(f))(X[0]))


def test_autograd_outside(f: Sample) -> None:
    batch = X.clone().requires_grad_()
    (ours,) = torch.autograd.grad(tl.vmap(total(f))(batch).sum(), batch)
    same(ours, loop(gradient(total(f)), X))


@pytest.mark.sweep
def test_deeper(f: Sample) -> None:
    """grad above, between and below vmaps."""

    def inner(x: Tensor) -> Tensor:
        return tl.vmap(tl.grad(total(f)))(x).sin().sum()

    ours = tl.vmap(tl.grad(inner))(PAIRS)
    expected = loop(
        lambda pair: loop(lambda x: hessian(total(f))(x) @ gradient(total(f))(x).cos(), pair), PAIRS
    )
    same(ours, expected)
