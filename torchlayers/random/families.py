"""Samplers made of others by a formula, differentiable by the distributions' parameters."""

import torch
from torch import Tensor

from torchlayers.random.arguments import Number, Shape, drawn, dtype_of, like, shape_of
from torchlayers.random.continuous import exponential, gamma, normal, open_interval
from torchlayers.random.discrete import rademacher
from torchlayers.random.keys import split


def lognormal(
    key: Tensor, sigma: Number = 1.0, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers whose logarithms are normal, with mean zero.

    Args:
        key: a key.
        sigma: the standard deviation of the logarithms: a number, or a tensor that broadcasts to
            the shape. The result is differentiable by it.
        shape: of the result; that of sigma if None.
        dtype: if None, that of sigma if it is a floating-point tensor, else torch's default dtype.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> bool((lognormal(torchlayers.random.key(0), 0.5, (1000,)) > 0).all())
        True

    Source: jax.random.lognormal.
    """
    shape = shape_of("lognormal", shape, sigma)
    numbers = normal(key, shape, dtype_of(dtype, sigma))
    (sigma,) = like("lognormal", numbers, sigma=sigma)
    return torch.exp(sigma * numbers)


def chisquare(
    key: Tensor, df: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the chi-squared distribution.

    Args:
        key: a key.
        df: the degrees of freedom, as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> chisquare(torchlayers.random.key(0), 3.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.chisquare.
    """
    return 2 * gamma(key, df / 2, shape, dtype)


def f(
    key: Tensor,
    dfnum: Number,
    dfden: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws numbers from the F distribution.

    Args:
        key: a key.
        dfnum, dfden: the degrees of freedom of the numerator and of the denominator, as sigma for
            :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> f(torchlayers.random.key(0), 3.0, torch.tensor([4.0, 5.0])).shape
        torch.Size([2])

    Source: jax.random.f.
    """
    shape, dtype = shape_of("f", shape, dfnum, dfden), dtype_of(dtype, dfnum, dfden)
    first, second = split(key)
    numerator = gamma(first, dfnum / 2, shape, dtype) / dfnum
    return numerator / (gamma(second, dfden / 2, shape, dtype) / dfden)


def pareto(
    key: Tensor, b: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the Pareto distribution on [1, inf).

    Args:
        key: a key.
        b: the shape parameter, as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> bool((pareto(torchlayers.random.key(0), 2.0, (1000,)) >= 1).all())
        True

    Source: jax.random.pareto.
    """
    shape = shape_of("pareto", shape, b)
    numbers = exponential(key, shape, dtype_of(dtype, b))
    (b,) = like("pareto", numbers, b=b)
    return torch.exp(numbers / b)


def rayleigh(
    key: Tensor, scale: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the Rayleigh distribution.

    Args:
        key: a key.
        scale: the scale, as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> rayleigh(torchlayers.random.key(0), 2.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.rayleigh.
    """
    shape = shape_of("rayleigh", shape, scale)
    numbers = exponential(key, shape, dtype_of(dtype, scale))
    (scale,) = like("rayleigh", numbers, scale=scale)
    return scale * torch.sqrt(2 * numbers)


def weibull_min(
    key: Tensor,
    scale: Number,
    concentration: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws numbers from the Weibull distribution of minima.

    Args:
        key: a key.
        scale, concentration: as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> weibull_min(torchlayers.random.key(0), 2.0, 1.5, (4,)).shape
        torch.Size([4])

    Source: jax.random.weibull_min.
    """
    shape = shape_of("weibull_min", shape, scale, concentration)
    # Above zero, where a power below one has a derivative.
    u = open_interval(
        drawn("uniform", "weibull_min", key, shape, dtype_of(dtype, scale, concentration))
    )
    scale, concentration = like("weibull_min", u, scale=scale, concentration=concentration)
    return scale * (-torch.log(u)) ** (1 / concentration)


def triangular(
    key: Tensor,
    left: Number,
    mode: Number,
    right: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws numbers from the triangular distribution.

    Args:
        key: a key.
        left, mode, right: where the density begins, is highest and ends, in this order, as sigma
            for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype, in [left, right].
    Example:
        >>> x = triangular(torchlayers.random.key(0), -1.0, 0.0, 2.0, (1000,))
        >>> bool((x >= -1).all() and (x <= 2).all())
        True

    Source: jax.random.triangular.
    """
    shape = shape_of("triangular", shape, left, mode, right)
    u = drawn("uniform", "triangular", key, shape, dtype_of(dtype, left, mode, right))
    u = open_interval(u)
    left, mode, right = like("triangular", u, left=left, mode=mode, right=right)
    width = right - left
    is_left = u * width < mode - left
    # Where a side is not taken its root may be of zero, which has no derivative.
    rising = torch.where(is_left, u * width * (mode - left), 1)
    falling = torch.where(is_left, 1, (1 - u) * width * (right - mode))
    return torch.where(is_left, left + torch.sqrt(rising), right - torch.sqrt(falling))


def generalized_normal(
    key: Tensor, p: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers with a density proportional to exp(-abs(x) ** p).

    Args:
        key: a key.
        p: the power, as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> generalized_normal(torchlayers.random.key(0), 3.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.generalized_normal.
    """
    shape = shape_of("generalized_normal", shape, p)
    first, second = split(key)
    power = 1 / p
    sizes = gamma(first, power, shape, dtype_of(dtype, p)) ** power
    return rademacher(second, shape, sizes.dtype) * sizes


def maxwell(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the Maxwell distribution with scale 1.

    Example:
        >>> bool((maxwell(torchlayers.random.key(0), (1000,)) > 0).all())
        True

    Source: jax.random.maxwell.
    """
    shape = shape_of("maxwell", shape)
    norms: Tensor = torch.linalg.vector_norm(normal(key, (*shape, 3), dtype), dim=-1)
    return norms


def double_sided_maxwell(
    key: Tensor,
    loc: Number,
    scale: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws numbers whose distance from loc has the Maxwell distribution with this scale.

    Args:
        key: a key.
        loc, scale: as sigma for :func:`lognormal`.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> double_sided_maxwell(torchlayers.random.key(0), 0.0, 2.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.double_sided_maxwell.
    """
    shape = shape_of("double_sided_maxwell", shape, loc, scale)
    first, second = split(key)
    sizes = maxwell(first, shape, dtype_of(dtype, loc, scale))
    loc, scale = like("double_sided_maxwell", sizes, loc=loc, scale=scale)
    return loc + scale * rademacher(second, shape, sizes.dtype) * sizes


def wald(
    key: Tensor, mean: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the Wald (inverse Gaussian) distribution with this mean and scale 1.

    Args:
        key: a key.
        mean: the mean, above zero, as sigma for :func:`lognormal`. The derivative by it leaves out
            that it decides which of two roots is taken.
        shape, dtype: as for :func:`lognormal`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> bool((wald(torchlayers.random.key(0), 2.0, (1000,)) > 0).all())
        True

    Source: jax.random.wald; J. Michael and others, "Generating random variates using
    transformations with multiple roots" (1976).
    """
    shape = shape_of("wald", shape, mean)
    first, second = split(key)
    numbers = normal(first, shape, dtype_of(dtype, mean))
    (mean,) = like("wald", numbers, mean=mean)
    half = mean * numbers.square() / 2
    smaller = mean / (1 + half + torch.sqrt(half * (half + 2)))
    takes_smaller = drawn("uniform", "wald", second, shape, numbers.dtype) <= mean / (
        mean + smaller
    )
    return torch.where(takes_smaller, smaller, mean.square() / smaller)
