"""torch.func's vmaps nested with ours, and writes to tensors that a function has created."""

import pytest
import torch
import torch.func
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl

X = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).sin()


def written(x: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=torch.float64)
    y[0] = x[0]
    y[1:] += 2 * x[1:]
    return y


def test_ours_is_the_innermost() -> None:
    f = torch.func.vmap(lambda x: tl.vmap(written)(torch.stack([x, 2 * x])))
    expected = torch.stack([torch.stack([written(x), written(2 * x)]) for x in X])
    assert_close(f(X), expected)


@pytest.mark.parametrize("outer", [tl.vmap, tl.grad])
def test_theirs_is_the_innermost(outer) -> None:  # type: ignore[no-untyped-def]
    def f(x: Tensor) -> Tensor:
        return torch.func.vmap(written)(torch.stack([x, 2 * x])).sum()

    with pytest.raises(RuntimeError, match=r"torchlayers: torch.func's vmap \(level 2\) can't"):
        outer(f)(X if outer is tl.vmap else X[0])
    assert tl.current_stack() == ()
    with tl.install():
        tl.vmap(lambda x: torch.func.vmap(written)(torch.stack([x, 2 * x])))(X)


def test_theirs_may_write_what_ours_has_batched() -> None:
    def f(x: Tensor) -> Tensor:
        def inner(a: Tensor) -> Tensor:
            y = torch.zeros(3, dtype=torch.float64)
            y[0] = x[0]
            return y * a

        return torch.func.vmap(inner)(torch.stack([x, x]))

    assert_close(tl.vmap(f)(X)[:, :, 0], (X[:, 0] ** 2)[:, None].expand(4, 2))


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (2, 2, 2), (3, 1)])
@pytest.mark.parametrize("make", [torch.clone, torch.zeros_like, torch.Tensor.sin])
def test_tangents_of_parts_lie_as_those_of_theirs_in_memory(make, shape) -> None:  # type: ignore[no-untyped-def]
    """What torch.func's vmap has batched along the last dimension is interleaved in memory."""
    x = torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64).reshape(shape).sin()

    def f(x: Tensor) -> Tensor:
        def g(z: Tensor) -> Tensor:
            y = make(x.expand(2, *x.shape))
            y.transpose(0, -1).copy_(z.sum())
            y[1] += z.cos()
            return y * x

        return tl.jacfwd(g)(x)

    expected = torch.stack([f(sample) for sample in x.unbind(-1)])
    assert_close(torch.func.vmap(f, in_dims=-1)(x), expected)


@pytest.mark.parametrize("shape", [(2, 0), (1, 1, 0), (2, 3, 0), (2, 1), (2, 3)])
def test_gradients_of_what_is_empty(shape) -> None:  # type: ignore[no-untyped-def]
    """torch's derivative of as_strided of no elements is not batched."""

    def f(x: Tensor) -> Tensor:
        def written(y: Tensor) -> Tensor:
            return tl.vmap(lambda _: y.clone().sin_())(torch.zeros(3)).sum()

        return tl.grad(lambda x: tl.grad(written)(x).sum())(x)

    x = torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64).reshape(shape)
    assert_close(torch.func.vmap(f)(x), -3 * x.sin())
