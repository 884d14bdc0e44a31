"""Linear solves, inverses, determinants and factorizations, by the equations that they solve."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.core.torch_private import dispatch_modes, functorch, is_batched_wrapper, is_wrapped
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import (
    Series,
    bilinear,
    convolved,
    integral,
    minus,
    plus,
    recursive,
)


@rule(aten.linalg_inv_ex)
def inv(value: Any, a: Series, *, check_errors: bool = False) -> tuple[Series, None]:
    return _inverse(a, value[0]), None


def _inverse(a: Series, first: Tensor) -> Series:
    """From A Y = 1: A[0] Y[k] is minus the sum of the products A[i] Y[k - i], i > 0."""

    def define(y: Series) -> Series:
        def compute(k: int) -> Any:
            rest = convolved(torch.matmul, a, y, k, 1)
            return None if rest is None else -(first @ rest)

        return Series(compute, first)

    return recursive(first, define)


@rule(aten._linalg_solve_ex)
def solve(
    value: Any, a: Series, b: Series, *, left: bool = True, check_errors: bool = False
) -> tuple[Series | None, ...]:
    x, lu, pivots, _ = value
    is_vector = x.dim() == lu.dim() - 1
    column = -1 if left else -2

    def undo(right: Tensor) -> Any:
        if _is_differentiated(a[0]):  # LU, a second result, is a constant to all derivatives
            return torch.linalg.solve(a[0], right.expand(x.shape), left=left)
        return torch.linalg.lu_solve(lu, pivots, right, left=left)

    def times(a: Tensor, x: Tensor) -> Tensor:
        return a @ x if left else x @ a

    if is_vector:
        b = b.map(lambda c: c.unsqueeze(column))
        x = x.unsqueeze(column)

    def define(y: Series) -> Series:
        def compute(k: int) -> Any:
            rest = minus(b[k], convolved(times, a, y, k, 1))
            return None if rest is None else undo(rest)

        return Series(compute, x)

    y = recursive(x, define)
    return (y.map(lambda c: c.squeeze(column)) if is_vector else y), None, None, None


def _is_differentiated(x: Tensor) -> bool:
    """Whether a layer below, autograd or a recording may differentiate what is computed from x."""
    while is_batched_wrapper(x):
        x = functorch.get_unwrapped(x)
    is_plain = type(x) is Tensor and not x.requires_grad and not is_wrapped(x)
    return not is_plain or bool(dispatch_modes._get_current_dispatch_mode_stack())


@rule(aten.linalg_solve_triangular)
def solve_triangular(
    value: Tensor,
    a: Series,
    b: Series,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Series:
    def half(a: Tensor) -> Tensor:
        return a.triu(int(unitriangular)) if upper else a.tril(-int(unitriangular))

    def times(a: Tensor, x: Tensor) -> Tensor:
        return half(a) @ x if left else x @ half(a)

    def define(y: Series) -> Series:
        def compute(k: int) -> Any:
            rest = minus(b[k], convolved(times, a, y, k, 1))
            if rest is None:
                return None
            rest = rest.expand(value.shape)
            return torch.linalg.solve_triangular(
                a[0], rest, upper=upper, left=left, unitriangular=unitriangular
            )

        return Series(compute, value)

    return recursive(value, define)


@rule(aten._linalg_slogdet)
def slogdet(value: Any, a: Series) -> Any:
    """The derivative of log|A| is the trace of inv(A) A'."""
    if a[0].is_complex():
        return NotImplemented
    inverse = _inverse(a, torch.linalg.inv(a[0]))
    return None, integral(value[1], bilinear(_trace, inverse, a.derivative())), None, None


def _trace(a: Tensor, b: Tensor) -> Tensor:
    """The trace of a @ b."""
    return (a * b.mT).sum((-2, -1))


@rule(aten.linalg_cholesky_ex)
def cholesky(
    value: Any, a: Series, *, upper: bool = False, check_errors: bool = False
) -> tuple[Series, None]:
    """From A = L L^H: with M = inv(L) (A' - ...) inv(L)^H, L' = L (lower half of M)."""
    first = value[0].mH if upper else value[0]

    def define(factor: Series) -> Series:
        def compute(k: int) -> Any:
            known = None
            for i in range(1, k):
                if factor[i] is not None and factor[k - i] is not None:
                    known = plus(known, factor[i] @ factor[k - i].mH)
            rest = minus(_hermitian(a[k]), known)
            if rest is None:
                return None
            half = torch.linalg.solve_triangular(first, rest, upper=False)
            both = torch.linalg.solve_triangular(first.mH, half, upper=True, left=False)
            middle = both.tril(-1) + both.diagonal(0, -2, -1).mul(0.5).diag_embed()
            return first @ middle

        return Series(compute, first)

    factor = recursive(first, define)
    return (factor.map(lambda c: c.mH) if upper else factor), None


@rule(aten._linalg_eigh)
def eigh(
    value: Any, a: Series, uplo: str = "L", compute_v: bool = True
) -> tuple[Series, Series | None]:
    """With W = V^H A' V: the eigenvalues have the derivative diag(W), and V' = V E, where E is W
    off the diagonal, divided by the gaps of the eigenvalues."""
    first, vectors = value if compute_v else aten._linalg_eigh(a[0], uplo, True)
    values: list[Series] = []

    def define(v: Series) -> Series:
        rotated = bilinear(torch.matmul, v.map(_adjoint), bilinear(torch.matmul, a.derivative(), v))
        values.append(integral(first, rotated.map(_real_diagonal)))
        gaps = values[0].map(lambda c: c.unsqueeze(-2) - c.unsqueeze(-1))
        eye = torch.eye(first.size(-1), dtype=first.dtype, device=first.device)
        apart = Series(lambda k: gaps[k] + eye if k == 0 else gaps[k])
        turn = rotated.map(lambda c: c * (1 - eye)) / apart
        return integral(vectors, bilinear(torch.matmul, v, turn))

    v = recursive(vectors, define)
    return values[0], v if compute_v else None


def _adjoint(a: Tensor) -> Tensor:
    return a.mH


def _real_diagonal(a: Tensor) -> Tensor:
    diagonal = a.diagonal(0, -2, -1)
    return diagonal.real if a.is_complex() else diagonal


@rule(aten.linalg_qr)
def qr(value: Any, a: Series, mode: str = "reduced") -> Any:
    """With M = Q^H A' inv(R), of which S is M + M^H above the diagonal, plus half of that on it:
    Q' = A' inv(R) - Q S and R' = S R. Of a wide matrix: its first columns determine Q."""
    q, r = value
    rows, columns = q.size(-2), r.size(-1)
    if mode == "r" or (mode == "complete" and rows > columns):
        return NotImplemented
    square = a.map(lambda c: c[..., :rows]) if rows < columns else a
    first = r[..., :rows] if rows < columns else r
    # Both at once, Q above R, as each depends on the other.

    def define(both: Series) -> Series:
        upper, lower = both.map(lambda c: c[..., :rows, :]), both.map(lambda c: c[..., rows:, :])
        moved = _over(square.derivative(), lower)
        inner = bilinear(torch.matmul, upper.map(_adjoint), moved)
        stretch = inner.map(lambda c: _upper_half(c + c.mH))
        slope = moved - bilinear(torch.matmul, upper, stretch)
        slopes = _stacked(slope, bilinear(torch.matmul, stretch, lower))
        return integral(torch.cat([q, first], -2), slopes)

    joined = recursive(torch.cat([q, first], -2), define)
    q_ = joined.map(lambda c: c[..., :rows, :])
    if rows < columns:
        return q_, bilinear(torch.matmul, q_.map(_adjoint), a)
    return q_, joined.map(lambda c: c[..., rows:, :])


def _stacked(x: Series, y: Series) -> Series:
    """One matrix above the other, of two series that are zero together."""
    return Series(lambda k: None if x[k] is None else torch.cat([x[k], y[k]], -2))


def _over(a: Series, r: Series) -> Series:
    """a times the inverse of the upper triangular matrix r."""

    def solved(rest: Any) -> Any:
        if rest is None:
            return None
        return torch.linalg.solve_triangular(r[0], rest, upper=True, left=False)

    def define(x: Series) -> Series:
        def compute(k: int) -> Any:
            return solved(minus(a[k], convolved(lambda r, x: x @ r, r, x, k, 1)))

        return Series(compute, solved(a[0]))

    return recursive(solved(a[0]), define)


def _upper_half(a: Tensor) -> Tensor:
    return a.triu(1) + a.diagonal(0, -2, -1).mul(0.5).diag_embed()


def _hermitian(a: Any) -> Any:
    return None if a is None else (a + a.mH) / 2
