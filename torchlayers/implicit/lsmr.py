"""LSMR: least squares by products with a matrix and its transpose, on single real vectors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry, norm
from torchlayers.implicit.solution import count_iterations

OnVector = Callable[[Tensor], Tensor]


def lsmr(
    matvec: OnVector, vecmat: OnVector, b: Tensor, bound: Tensor, limit: int
) -> tuple[Tensor, Tensor]:
    """Minimizes |A x - b|, until |A^T (b - A x)| is at most the bound.

    Golub and Kahan's bidiagonalization, with two rotations in each step (Fong and Saunders 2011,
    in whose notation this is).
    """
    beta = norm(b)
    u = _ratio(b, beta)
    v = vecmat(u)
    alpha = norm(v)
    v = _ratio(v, alpha)
    one = torch.ones_like(alpha * beta)

    def body(i: Any, carry: Carry) -> Carry:
        x, u, v, h, hbar, alpha, alphabar, zetabar, rho, rhobar, cbar, sbar = carry
        u = matvec(v) - alpha * u
        beta = norm(u)
        u = _ratio(u, beta)
        v = vecmat(u) - beta * v
        alpha = norm(v)
        v = _ratio(v, alpha)
        previous = rho * rhobar
        rho = torch.hypot(alphabar, beta)
        theta, alphabar = _ratio(beta, rho) * alpha, _ratio(alphabar, rho) * alpha
        thetabar, rhotemp = sbar * rho, cbar * rho
        rhobar = torch.hypot(rhotemp, theta)
        cbar, sbar = _ratio(rhotemp, rhobar), _ratio(theta, rhobar)
        zeta, zetabar = cbar * zetabar, -sbar * zetabar
        hbar = h - _ratio(thetabar * rho, previous) * hbar
        x = x + _ratio(zeta, rho * rhobar) * hbar
        h = v - _ratio(theta, rho) * h
        return x, u, v, h, hbar, alpha, alphabar, zetabar, rho, rhobar, cbar, sbar

    def goes_on(carry: Carry) -> Tensor:
        return (carry[7].abs() > bound) & carry[7].isfinite()

    first = alpha * beta
    zeros = torch.zeros_like(v)
    start = (zeros, u, v, v, zeros, alpha, alpha, first, one, one, one, 0 * one)
    last, iterations = count_iterations(goes_on, body, start, limit)
    return last[0], iterations


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, or zero where b is zero."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))
