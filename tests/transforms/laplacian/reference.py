"""The Laplacian as the trace of the Hessian, which is computed forward over reverse."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl


def trace_of_hessian(f: Callable[..., Tensor], weights: Tensor | None = None) -> Any:
    """The same as tl.laplacian(f) for f of one tensor, with a matrix of weights."""

    def trace(x: Tensor) -> Tensor:
        hessian = tl.hessian(f)(x)
        count = x.numel()
        hessian = hessian.reshape(*hessian.shape[: hessian.dim() - 2 * x.dim()], count, count)
        if weights is not None:
            hessian = hessian @ weights
        return hessian.diagonal(dim1=-2, dim2=-1).sum(-1)

    return trace


def projected(f: Callable[..., Sequence[Tensor]]) -> Callable[..., Tensor]:
    """f, whose outputs are reduced to one number by fixed weights.

    The Laplacian is linear, so that of the number tells whether those of the outputs are right.
    """

    def number(*inputs: Tensor) -> Tensor:
        total: Any = 0
        for leaf in f(*inputs):
            own = torch.cos(torch.arange(leaf.numel(), dtype=torch.float64) ** 2 + 1)
            total = total + (own.view(leaf.shape) * leaf).sum()
        return total

    return number


def traces_over(f: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """The Laplacian of a number with respect to all elements of all inputs."""
    sizes = [x.numel() for x in inputs]
    flat = torch.cat([x.reshape(-1) for x in inputs])

    def of_flat(flat: Tensor) -> Tensor:
        pieces = flat.split(sizes)
        return f(*(piece.view(x.shape) for piece, x in zip(pieces, inputs, strict=True)))

    found: Tensor = trace_of_hessian(of_flat)(flat)
    return found


def leaves_with_derivatives(results: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in pytree.tree_leaves(results)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
