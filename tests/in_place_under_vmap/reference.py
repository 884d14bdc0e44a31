"""The reference results: a loop over the samples and plain autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

Function = Callable[..., Any]


def loop(f: Function, *batches: Tensor) -> Any:
    """The result of f for each sample, stacked."""
    results = [pytree.tree_flatten(f(*samples)) for samples in zip(*batches, strict=True)]
    columns = zip(*(leaves for leaves, _ in results), strict=True)
    return pytree.tree_unflatten([torch.stack(column) for column in columns], results[0][1])


def total(f: Function) -> Function:
    """A number computed from everything f returns, in which each element counts."""

    def number(*args: Tensor) -> Tensor:
        leaves = [leaf.double() for leaf in pytree.tree_leaves(f(*args))]
        weighed = [(leaf.flatten() * torch.arange(1.0, leaf.numel() + 1)).sum() for leaf in leaves]
        return sum(each**2 for each in weighed) + 0 * args[0].sum()

    return number


def gradient(f: Function) -> Function:
    def of(x: Tensor) -> Tensor:
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(f(x), x)[0]

    return of


def hessian(f: Function) -> Function:
    return lambda x: torch.autograd.functional.hessian(f, x)


def same(ours: Any, theirs: Any) -> None:
    our_leaves, theirs_leaves = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    for our, their in zip(our_leaves, theirs_leaves, strict=True):
        assert_close(our, their)
