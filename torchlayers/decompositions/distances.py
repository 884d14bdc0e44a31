"""Distances between rows, as norms of their differences."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.grad import vjp


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Distances between all rows of two matrices: (…, P, M) and (…, R, M) to (…, P, R)."""
    distance: Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)
    return distance


def cdist_backward(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Tensor:
    """The gradient of cdist by x1, (…, P, M)."""
    return _pulled(vjp(lambda x: cdist(x, x2, p), x1), gradient)


def pdist(x: Tensor, p: float = 2) -> Tensor:
    """Distances between the rows of one matrix, each pair once: (N, M) to (N(N-1)/2,)."""
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    distance: Tensor = torch.linalg.vector_norm(x[i] - x[j], p, dim=-1)
    return distance


def pdist_backward(gradient: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """The gradient of pdist, (N, M)."""
    return _pulled(vjp(lambda x: pdist(x, p), x), gradient)


def _pulled(pullback: Any, gradient: Tensor) -> Tensor:
    _, vjp_fn = pullback
    pulled: tuple[Tensor] = vjp_fn(gradient)
    return pulled[0]
