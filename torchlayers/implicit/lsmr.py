"""LSMR: least squares by products with a matrix and its transpose, on single real vectors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry, norm, ratio_or_zero
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
    u = ratio_or_zero(b, beta)
    v = vecmat(u)
    alpha = norm(v)
    v = ratio_or_zero(v, alpha)
    one = torch.ones_like(alpha * beta)

    def body(i: Any, carry: Carry) -> Carry:
        x, u, v, h, hbar, alpha, alphabar, zetabar, rho, rhobar, cbar, sbar = carry
        u = matvec(v) - alpha * u
        beta = norm(u)
        u = ratio_or_zero(u, beta)
        v = vecmat(u) - beta * v
        alpha = norm(v)
        v = ratio_or_zero(v, alpha)
        previous = rho * rhobar
        rho = torch.hypot(alphabar, beta)
        theta, alphabar = ratio_or_zero(beta, rho) * alpha, ratio_or_zero(alphabar, rho) * alpha
        thetabar, rhotemp = sbar * rho, cbar * rho
        rhobar = torch.hypot(rhotemp, theta)
        cbar, sbar = ratio_or_zero(rhotemp, rhobar), ratio_or_zero(theta, rhobar)
        zeta, zetabar = cbar * zetabar, -sbar * zetabar
        hbar = h - ratio_or_zero(thetabar * rho, previous) * hbar
        x = x + ratio_or_zero(zeta, rho * rhobar) * hbar
        h = v - ratio_or_zero(theta, rho) * h
        return x, u, v, h, hbar, alpha, alphabar, zetabar, rho, rhobar, cbar, sbar

    def goes_on(carry: Carry) -> Tensor:
        return (carry[7].abs() > bound) & carry[7].isfinite()

    first = alpha * beta
    zeros = torch.zeros_like(v)
    start = (zeros, u, v, v, zeros, alpha, alpha, first, one, one, one, 0 * one)
    last, iterations = count_iterations(goes_on, body, start, limit)
    return last[0], iterations
