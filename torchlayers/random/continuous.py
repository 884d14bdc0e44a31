"""Samplers of continuous distributions, differentiable by the distributions' parameters."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operator_rules import plain_derivatives
from torchlayers.random.arguments import (
    Number,
    Shape,
    check_key,
    drawn,
    dtype_of,
    expanded,
    like,
    operator_for,
    shape_of,
)
from torchlayers.random.keys import split


def uniform(
    key: Tensor,
    shape: Shape = (),
    dtype: torch.dtype | None = None,
    minval: Number = 0.0,
    maxval: Number = 1.0,
) -> Tensor:
    """Draws numbers uniformly from [minval, maxval).

    Args:
        key: a key.
        shape: of the result.
        dtype: float16, bfloat16, float32 or float64; torch's default dtype if None.
        minval, maxval: numbers, or tensors that broadcast to the shape. The result is
            differentiable by them.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> x = uniform(torchlayers.random.key(0), (1000,), minval=2.0, maxval=3.0)
        >>> bool((x >= 2).all() and (x < 3).all())
        True

    Source: jax.random.uniform.
    """
    numbers = drawn("uniform", "uniform", key, shape, dtype)
    if isinstance(minval, Tensor) or isinstance(maxval, Tensor) or (minval, maxval) != (0, 1):
        low, high = like("uniform", numbers, minval=minval, maxval=maxval)
        scaled = numbers * (high - low) + low
        # Rounding up may reach maxval: replace it by the number below.
        below = torch.maximum(low, torch.nextafter(high, low)).detach()
        numbers = torch.where((scaled < high) | (high <= low), scaled, below)
    return numbers


def normal(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the standard normal distribution.

    Args:
        key: a key.
        shape: of the result.
        dtype: float16, bfloat16, float32 or float64; torch's default dtype if None.
    Returns:
        A tensor of this shape and dtype, all finite: at most 6.7, or 8.6 in float64, in magnitude.
    Example:
        >>> normal(torchlayers.random.key(0), (2, 3)).shape
        torch.Size([2, 3])

    Source: jax.random.normal.
    """
    return drawn("normal", "normal", key, shape, dtype)


def truncated_normal(
    key: Tensor,
    lower: Number,
    upper: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draws numbers from the standard normal distribution truncated to two bounds.

    Args:
        key: a key.
        lower, upper: numbers, or tensors that broadcast to the shape. The result is
            differentiable by them.
        shape: of the result; the broadcast shape of the bounds if None.
        dtype: as for :func:`normal`.
    Returns:
        A tensor of this shape and dtype, in [lower, upper].
    Example:
        >>> x = truncated_normal(torchlayers.random.key(0), -1.0, 2.0, (1000,))
        >>> bool((x >= -1).all() and (x <= 2).all())
        True

    Source: jax.random.truncated_normal.
    """
    shape = shape_of("truncated_normal", shape, lower, upper)
    u = drawn("uniform", "truncated_normal", key, shape, dtype)
    low, high = like("truncated_normal", u, lower=lower, upper=upper)
    # In the tail above zero the distribution function rounds to 1 and loses precision, so compute
    # with the mirror image below zero.
    is_above = low > 0
    left, right = torch.where(is_above, -high, low), torch.where(is_above, -low, high)
    below_left, below_right = torch.special.ndtr(left), torch.special.ndtr(right)
    smallest = torch.finfo(u.dtype).tiny
    inside = below_left + u * (below_right - below_left)
    x = torch.special.ndtri(inside.clamp(smallest, 1 - torch.finfo(u.dtype).eps / 2))
    x = torch.maximum(torch.minimum(x, right), left)
    return torch.where(is_above, -x, x)


def exponential(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the exponential distribution with mean 1, all finite.

    Example:
        >>> bool((exponential(torchlayers.random.key(0), (1000,)) >= 0).all())
        True

    Source: jax.random.exponential.
    """
    return -torch.log1p(-drawn("uniform", "exponential", key, shape, dtype))


def gumbel(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the standard Gumbel distribution, all finite.

    Example:
        >>> bool(gumbel(torchlayers.random.key(0), (1000,)).isfinite().all())
        True

    Source: jax.random.gumbel.
    """
    return -torch.log(-torch.log(open_interval(drawn("uniform", "gumbel", key, shape, dtype))))


def laplace(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the Laplace distribution with scale 1, all finite.

    Example:
        >>> bool(laplace(torchlayers.random.key(0), (1000,)).isfinite().all())
        True

    Source: jax.random.laplace.
    """
    u = 2 * open_interval(drawn("uniform", "laplace", key, shape, dtype)) - 1
    return -torch.sign(u) * torch.log1p(-u.abs())


def logistic(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the standard logistic distribution, all finite.

    Example:
        >>> bool(logistic(torchlayers.random.key(0), (1000,)).isfinite().all())
        True

    Source: jax.random.logistic.
    """
    u = open_interval(drawn("uniform", "logistic", key, shape, dtype))
    return torch.log(u) - torch.log1p(-u)


def cauchy(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Draws numbers from the standard Cauchy distribution, all finite.

    Example:
        >>> bool(cauchy(torchlayers.random.key(0), (1000,)).isfinite().all())
        True

    Source: jax.random.cauchy.
    """
    u = open_interval(drawn("uniform", "cauchy", key, shape, dtype))
    return torch.tan(math.pi * (u - 0.5))


def gamma(
    key: Tensor, a: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the gamma distribution with scale 1.

    Args:
        key: a key.
        a: the shape parameter, above zero: a number, or a tensor that broadcasts to the shape. The
            result is differentiable by it, by implicit reparameterisation.
        shape: of the result; that of a if None.
        dtype: if None, that of a if a is a floating-point tensor, else torch's default dtype.
    Returns:
        A tensor of this shape and dtype; nan where a is not positive.
    Example:
        >>> gamma(torchlayers.random.key(0), torch.tensor([0.5, 2.0])).shape
        torch.Size([2])
        >>> mean = lambda a: gamma(torchlayers.random.key(0), a, (1000,)).mean()
        >>> torchlayers.grad(mean)(torch.tensor(3.0)) > 0
        tensor(True)

    Source: jax.random.gamma.
    """
    check_key("random.gamma", key)
    shape = shape_of("gamma", shape, a)
    dtype = dtype_of(dtype, a)
    _register_gamma()
    alpha = torch.as_tensor(a, dtype=dtype, device=key.device)
    return operator_for("random_gamma", key)(key, expanded("gamma", "a", alpha, shape))  # type: ignore[no-any-return]


def loggamma(
    key: Tensor, a: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws logarithms of gamma-distributed numbers, finite where those would be zero.

    Args:
        key, a, shape, dtype: as for :func:`gamma`.
    Returns:
        A tensor of this shape and dtype; nan where a is not positive.
    Example:
        >>> bool(loggamma(torchlayers.random.key(0), 1e-3, (1000,)).isfinite().all())
        True

    Source: jax.random.loggamma.
    """
    shape = shape_of("loggamma", shape, a)
    first, second = split(key)
    # A number for a is one for a + 1, times that power of a uniform number.
    above = gamma(first, a + 1, shape, dtype_of(dtype, a))
    (a,) = like("loggamma", above, a=a)
    u = open_interval(drawn("uniform", "loggamma", second, shape, above.dtype))
    return torch.where(a > 0, torch.log(above) + torch.log(u) / a, torch.nan)


def beta(
    key: Tensor, a: Number, b: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from the beta distribution.

    Args:
        key: a key.
        a, b: the parameters, as a for :func:`gamma`.
        shape: of the result; the broadcast shape of the parameters if None.
        dtype: as for :func:`gamma`.
    Returns:
        A tensor of this shape and dtype, in [0, 1].
    Example:
        >>> beta(torchlayers.random.key(0), 2.0, 3.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.beta.
    """
    shape = shape_of("beta", shape, a, b)
    first, second = split(key)
    x, y = gamma(first, a, shape, dtype), gamma(second, b, shape, dtype)
    return x / (x + y)


def student_t(
    key: Tensor, df: Number, shape: Shape | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Draws numbers from Student's t distribution.

    Args:
        key: a key.
        df: the degrees of freedom, as a for :func:`gamma`.
        shape: of the result; that of df if None.
        dtype: as for :func:`gamma`.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> student_t(torchlayers.random.key(0), 3.0, (4,)).shape
        torch.Size([4])

    Source: jax.random.t.
    """
    shape = shape_of("student_t", shape, df)
    first, second = split(key)
    half = gamma(second, df / 2, shape, dtype)
    return normal(first, shape, half.dtype) * torch.sqrt(df / 2 / half)


def open_interval(u: Tensor) -> Tensor:
    """Shifts numbers from [0, 1) into (0, 1), up by half a step, clamped below 1."""
    info = torch.finfo(u.dtype)
    return (u + info.eps / 4).clamp(max=1 - info.eps / 2)


@functools.cache
def _register_gamma() -> None:
    """Registers the derivatives for plain autograd: those of csrc/rules/random/random_rules.cpp."""
    ops: Any = torch.ops.torchlayers

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        return None, cotangent * ops.gamma_slope(*ctx.saved_tensors)

    def jvp(args: Any, number: Tensor, tangents: Any) -> Tensor:
        return tangents[1] * ops.gamma_slope(args[1], number)  # type: ignore[no-any-return]

    def keep_slope(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    def slopes_backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        by_shape = ops.gamma_slope_by_shape(*ctx.saved_tensors)
        return cotangent * by_shape, cotangent * ops.gamma_slope_by_number(*ctx.saved_tensors)

    def jvp_of_slope(args: Any, slope: Tensor, tangents: Any) -> Any:
        by_each = ops.gamma_slope_by_shape, ops.gamma_slope_by_number
        pairs = zip(tangents, by_each, strict=True)
        return sum(t * slope_by(*args, slope) for t, slope_by in pairs if t is not None)

    plain_derivatives.register("random_gamma", jvp, backward, keep)
    plain_derivatives.register("gamma_slope", jvp_of_slope, slopes_backward, keep_slope)
