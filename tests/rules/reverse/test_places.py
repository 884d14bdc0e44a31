"""Gradients of indexed reads: zeros, with the cotangent added at the index."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torchlayers as tl

# take has no batching rule
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

X = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
ROWS = torch.tensor([0, 3, 3, 1])  # one of them twice
PLACES = torch.tensor([[0, 1, 1, 0], [2, 3, 3, 2]])

READS = {
    "index": (lambda x, i: x[i], ROWS),
    "index of two": (lambda x, i: x[i, i], ROWS),
    "index behind a slice": (lambda x, i: x[:, i], ROWS),
    "index_select": (lambda x, i: x.index_select(0, i), ROWS),
    "gather": (lambda x, i: x.gather(0, i), PLACES),
    "take": (lambda x, i: x.take(i), PLACES),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), PLACES[:1]),
    "cummax": (lambda x, i: x.sin().cummax(0).values, ROWS),
    "scatter_reduce": (
        lambda x, i: torch.scatter_reduce(x[0].detach(), 0, i, x[1], "mean"),
        ROWS,
    ),
}


def loss(read, index):
    return lambda x: read(x, index).sin().sum()


@pytest.mark.parametrize("name", READS)
def test_gradients_with_and_without_an_outer_level(name):
    """The zeros may be written to in place only if no outer level records."""
    read, index = READS[name]
    recorded = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(read, index)(recorded), recorded)
    gradient = tl.grad(loss(read, index))
    torch.testing.assert_close(gradient(X), expected)
    with torch.no_grad():
        torch.testing.assert_close(gradient(X), expected)
    torch.testing.assert_close(tl.vmap(gradient)(torch.stack([X, X]))[1], expected)
    by_index = tl.vmap(lambda index: tl.grad(loss(read, index))(X))
    torch.testing.assert_close(by_index(torch.stack([index, index]))[1], expected)


@pytest.mark.parametrize("name", READS)
def test_second_derivatives(name):
    read, index = READS[name]
    hessian = torch.autograd.functional.hessian(loss(read, index), X)
    torch.testing.assert_close(tl.jacrev(tl.grad(loss(read, index)))(X), hessian)
    torch.testing.assert_close(tl.hessian(loss(read, index))(X), hessian)
    recorded = X.clone().requires_grad_()
    gradient = tl.grad(loss(read, index))(recorded)  # plain autograd differentiates it
    (by_autograd,) = torch.autograd.grad(gradient.sum(), recorded)
    torch.testing.assert_close(by_autograd, hessian.sum((0, 1)))


@pytest.mark.parametrize("name", ["index", "index_select", "gather", "take"])
def test_zeros_are_not_copied(name):
    read, index = READS[name]
    gradient = tl.grad(lambda x: read(x, index).sum())
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        gradient(X)
    names = {event.key for event in seen.key_averages()}
    assert "aten::new_zeros" in names
    assert not names & {"aten::clone", "aten::copy_"}
