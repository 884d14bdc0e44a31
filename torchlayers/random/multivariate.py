"""Samplers of vectors and matrices, differentiable by the distributions' parameters."""

import torch
from torch import Tensor

from torchlayers.random.arguments import Number, Shape, as_tuple, broadcast, check_key
from torchlayers.random.continuous import exponential, gamma, normal
from torchlayers.random.families import generalized_normal
from torchlayers.random.keys import split


def dirichlet(
    key: Tensor, alpha: Tensor, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws vectors from the Dirichlet distribution: probabilities that add up to one.

    Args:
        key: a key.
        alpha: the concentrations, along the last dimension.
        shape: of the result without its last dimension; that of alpha if None.
        dtype: as for :func:`gamma`.
    Returns:
        A tensor of this shape followed by alpha's last dimension.
    Example:
        >>> dirichlet(torchlayers.random.key(0), torch.ones(3), (5,)).sum(-1)
        tensor([1., 1., 1., 1., 1.])

    Source: jax.random.dirichlet.
    """
    shape = tuple(alpha.shape[:-1]) if shape is None else as_tuple(shape)
    x = gamma(key, alpha, (*shape, alpha.shape[-1]), dtype)
    return x / x.sum(-1, keepdim=True)


def multivariate_normal(
    key: Tensor,
    mean: Tensor,
    cov: Tensor,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws vectors from a normal distribution with this mean and covariance.

    Args:
        key: a key.
        mean: of shape (..., n); the result is differentiable by it and by cov.
        cov: of shape (..., n, n), positive definite.
        shape: of the result without its last dimension; that of mean and cov, broadcast, if None.
        dtype: that of mean if None.
    Returns:
        A tensor of this shape followed by n.
    Example:
        >>> multivariate_normal(torchlayers.random.key(0), torch.zeros(2), torch.eye(2), (5,)).shape
        torch.Size([5, 2])

    Source: jax.random.multivariate_normal.
    """
    if shape is None:
        shape = broadcast([mean.shape[:-1], cov.shape[:-2]])
    numbers = normal(key, (*as_tuple(shape), mean.shape[-1]), dtype or mean.dtype)
    factor = torch.linalg.cholesky(cov.to(numbers.dtype))
    result: Tensor = mean.to(numbers.dtype) + (factor @ numbers.unsqueeze(-1)).squeeze(-1)
    return result


def ball(
    key: Tensor,
    d: int,
    p: Number = 2,
    shape: Shape = (),
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws vectors uniformly from the unit ball of the p-norm.

    Args:
        key: a key.
        d: the length of the vectors.
        p: of the norm, above zero: a number, or a tensor without dimensions.
        shape: of the result without its last dimension.
        dtype: as for :func:`normal`.
    Returns:
        A tensor of this shape followed by d.
    Example:
        >>> x = ball(torchlayers.random.key(0), 3, shape=(1000,))
        >>> x.shape, bool((x.norm(dim=-1) <= 1).all())
        (torch.Size([1000, 3]), True)

    Source: jax.random.ball; F. Barthe and others, "A probabilistic approach to the geometry of the
    l_p^n-ball" (2005).
    """
    first, second = split(key)
    shape = as_tuple(shape)
    x = generalized_normal(first, p, (*shape, d), dtype)
    radius = (x.abs() ** p).sum(-1) + exponential(second, shape, x.dtype)
    return x / radius.unsqueeze(-1) ** (1 / p)


def orthogonal(
    key: Tensor,
    n: int,
    shape: Shape = (),
    dtype: torch.dtype | None = None,
    m: int | None = None,
) -> Tensor:
    """Draws orthogonal matrices uniformly (by the Haar measure).

    Args:
        key: a key.
        n: the number of rows.
        shape: of the result without its last two dimensions.
        dtype: float32 or float64; torch's default dtype if None.
        m: the number of columns; n if None. The rows or the columns, whichever are fewer, are
            orthonormal.
    Returns:
        A tensor of this shape followed by n and m.
    Example:
        >>> q = orthogonal(torchlayers.random.key(0), 3)
        >>> torch.allclose(q @ q.T, torch.eye(3), atol=1e-5)
        True

    Source: jax.random.orthogonal; F. Mezzadri, "How to generate random matrices from the classical
    compact groups" (2007).
    """
    check_key("random.orthogonal", key)
    m = n if m is None else m
    q, r = torch.linalg.qr(normal(key, (*as_tuple(shape), max(n, m), min(n, m)), dtype))
    q = q * torch.diagonal(r, dim1=-2, dim2=-1).sign().unsqueeze(-2)
    result: Tensor = q if n >= m else q.mT
    return result
