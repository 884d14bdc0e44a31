"""Nests of transforms, for the function of one rank and for that of all ranks at once.

Each is a pair: a nest that a rank applies to its function, and the same nest by torch.func for the
function that maps all ranks' tensors to all results. A row of the second result is the expected
result of the first on that rank, or on that sample of a vmap.

Derivatives over ranks are those of the sum of the ranks' results.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import torchlayers as tl

F = torch.func


def weighted(y: Tensor) -> Tensor:
    """Reduces a rank's result to a number, with another weight for each element."""
    return (y.sin() * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)).sum()


def summed(of_all: Callable) -> Callable:
    return lambda x: sum(weighted(y) for y in of_all(x))


def of_sine(f: Callable) -> Callable:
    return lambda x: f(x.sin())


def after_a_write(f: Callable) -> Callable:
    def written(x: Tensor) -> Tensor:
        y = f(x.sin())
        y.mul_(2)
        return y

    return written


def hvp_of_all(of_all: Callable) -> Callable:
    return lambda x: F.jvp(F.grad(summed(of_sine(of_all))), (x,), (x.cos(),))[1]


def tangents_of_all(of_all: Callable) -> Callable:
    return lambda x: F.jvp(of_sine(of_all), (x,), (x.cos(),))[1]


def jacrev_of_all(of_all: Callable) -> Callable:
    """Each rank pulls back the same row: this gives a row of the Jacobian of the results' sum."""

    def rows(x: Tensor) -> Tensor:
        jacobian = F.jacrev(lambda x: of_sine(of_all)(x).sum(0))(x)
        return jacobian.movedim(jacobian.dim() - x.dim(), 0)

    return rows


def jacfwd_of_all(of_all: Callable) -> Callable:
    """Each rank has the same tangent."""
    return lambda x: F.jacrev(lambda step: of_sine(of_all)(x + step))(torch.zeros_like(x[0]))


def hessian_of_all(of_all: Callable) -> Callable:
    return lambda x: F.jacrev(lambda step: F.grad(summed(of_all))(x + step))(torch.zeros_like(x[0]))


def linearized(f: Callable) -> Callable:
    def pushed(x: Tensor) -> Tensor:
        _, push = tl.linearize(of_sine(f), x)
        push(x)
        return push(x.cos())

    return pushed


NESTS: dict[str, tuple[Callable, Callable]] = {
    "value": (lambda f: f, lambda of_all: of_all),
    "grad": (
        lambda f: tl.grad(lambda x: weighted(f(x))),
        lambda of_all: F.grad(summed(of_all)),
    ),
    "grad after a write": (
        lambda f: tl.grad(lambda x: weighted(after_a_write(f)(x))),
        lambda of_all: F.grad(summed(lambda x: of_all(x.sin()) * 2)),
    ),
    "jvp": (
        lambda f: lambda x: tl.jvp(of_sine(f), (x,), (x.cos(),))[1],
        tangents_of_all,
    ),
    "the value beside a tangent": (
        lambda f: lambda x: tl.jvp(of_sine(f), (x,), (x.cos(),))[0],
        of_sine,
    ),
    "hvp": (
        lambda f: lambda x: tl.hvp(lambda x: weighted(f(x.sin())), (x,), (x.cos(),))[0],
        hvp_of_all,
    ),
    "grad of jvp": (
        lambda f: tl.grad(lambda x: weighted(tl.jvp(of_sine(f), (x,), (x.cos(),))[1])),
        lambda of_all: F.grad(summed(tangents_of_all(of_all))),
    ),
    "grad of grad": (
        lambda f: tl.grad(lambda x: weighted(tl.grad(lambda x: weighted(f(x.sin())))(x))),
        lambda of_all: F.grad(summed(F.grad(summed(of_sine(of_all))))),
    ),
    "jacrev": (lambda f: tl.jacrev(of_sine(f)), jacrev_of_all),
    "jacfwd": (lambda f: tl.jacfwd(of_sine(f)), jacfwd_of_all),
    "hessian": (lambda f: tl.hessian(lambda x: weighted(f(x))), hessian_of_all),
    "linearize": (linearized, tangents_of_all),
}


def batched(of_all: Callable) -> Callable:
    """Maps of_all over the samples of each rank."""
    return lambda x: torch.stack([of_all(each) for each in x.unbind(1)], 1)


# Nests for three samples per rank.
BATCHED: dict[str, tuple[Callable, Callable]] = {
    "vmap": (tl.vmap, batched),
    "vmap from the last dim": (
        lambda f: lambda x: tl.vmap(f, in_dims=-1)(x.movedim(0, -1)),
        batched,
    ),
    "vmap of vmap": (
        lambda f: lambda x: tl.vmap(tl.vmap(f), 1)(torch.stack([x, x.cos()], 1)),
        lambda of_all: lambda x: torch.stack([batched(of_all)(x), batched(of_all)(x.cos())], 1),
    ),
    "vmap of grad": (
        lambda f: tl.vmap(tl.grad(lambda x: weighted(f(x)))),
        lambda of_all: batched(F.grad(summed(of_all))),
    ),
    "grad of vmap": (
        lambda f: tl.grad(lambda x: weighted(tl.vmap(f)(x))),
        lambda of_all: F.grad(summed(batched(of_all))),
    ),
    "vmap of jvp": (
        lambda f: tl.vmap(lambda x: tl.jvp(of_sine(f), (x,), (x.cos(),))[1]),
        lambda of_all: batched(tangents_of_all(of_all)),
    ),
    "vmap of hvp": (
        lambda f: tl.vmap(lambda x: tl.hvp(lambda x: weighted(f(x.sin())), (x,), (x.cos(),))[0]),
        lambda of_all: batched(hvp_of_all(of_all)),
    ),
}
ALL = NESTS | BATCHED


def everybodys(shape: tuple[int, ...], size: int, nest: str) -> Tensor:
    """Returns the tensors of all ranks, with three samples each if the nest is in BATCHED."""
    generator = torch.Generator().manual_seed(7)
    batch = (3,) if nest in BATCHED else ()
    return torch.randn(size, *batch, *shape, dtype=torch.float64, generator=generator)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
