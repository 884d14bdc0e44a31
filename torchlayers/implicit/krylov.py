"""Solvers of linear systems on single real vectors: dense, cg, bicgstab and gmres.

They are undifferentiated here; solvers.py has the public functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.implicit.convergence import (
    Carry,
    Vectors,
    magnitude,
    norm,
    ratio_or_zero,
    relative_norm,
    warn_unless,
)
from torchlayers.implicit.solution import count_iterations
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vmap import vmap

# Up to this many unknowns, the default method makes the matrix.
DENSE_LIMIT = 128

OnVector = Callable[[Tensor], Tensor]
# Takes the map, b, x0, the residual to reach, and the largest number of iterations; returns x and
# the number of iterations.
Method = Callable[[OnVector, Tensor, Tensor | None, Tensor, int], tuple[Tensor, Tensor]]


class Stopping(NamedTuple):
    """When an iterative solver stops: at a residual of max(tol * norm(b), atol)."""

    tol: float | None
    atol: float | Tensor
    maxiter: int | None

    def bound(self, b: Tensor, eps: float) -> Tensor:
        tol = eps**0.75 if self.tol is None else self.tol
        return (tol * norm(b)).clamp(min=self.atol)

    def limit(self, unknowns: int) -> int:
        return min(10 * unknowns, 1000) if self.maxiter is None else self.maxiter

    def accepted(self, b: Tensor, eps: float) -> Tensor:
        """The residual above which there is a warning. The default tolerance is close to what
        rounding allows, so it may be missed by some digits."""
        if self.tol is not None:
            return self.bound(b, eps) * 1.01
        return self._replace(tol=eps**0.5).bound(b, eps)


def solve(
    name: str,
    method: Method | None,
    matvec: Callable[[Any], Any],
    b: Any,
    x0: Any = None,
    stopping: Stopping = Stopping(None, 0.0, None),  # noqa: B008
    direct: Method | None = None,
) -> Any:
    """Solves matvec(x) = b by one of the methods below, on pytrees; warns if that fails.

    None is the default method: `direct` for up to DENSE_LIMIT unknowns, gmres for more.
    """
    unknowns = pytree.TensorLeaves(b)
    if not unknowns.tensors:
        raise TransformError(f"torchlayers: {name}: b has no tensors.")
    form = Vectors(unknowns.tensors)

    def on_vector(v: Tensor) -> Tensor:
        return form.join(pytree.TensorLeaves(matvec(unknowns.put_in(form.split(v)))).tensors)

    rhs = form.join(unknowns.tensors)
    if not rhs.numel():
        return b
    start = None if x0 is None else form.join(pytree.TensorLeaves(x0).tensors)
    if method is None:
        method = (direct or dense) if rhs.numel() <= DENSE_LIMIT else gmres
    if method in (dense, dense_or_nan):
        return unknowns.put_in(form.split(method(on_vector, rhs)[0]))
    x, _, residual, converged = solve_vector(method, on_vector, rhs, start, stopping, form.eps)
    warn_unless(
        converged,
        name,
        residual,
        stopping.tol,
        "Raise maxiter, precondition the system, or use another solver.",
    )
    return unknowns.put_in(form.split(x))


class Solved(NamedTuple):
    x: Tensor
    iterations: Tensor
    residual: Tensor  # relative to b
    converged: Tensor


def solve_vector(
    method: Method,
    matvec: OnVector,
    rhs: Tensor,
    start: Tensor | None,
    stopping: Stopping,
    eps: float,
) -> Solved:
    """The methods square residuals. So they solve the system divided by the magnitude of b and x0,
    or the gradients of a loss that is scaled by 1e-25 would be zero in single precision."""
    scale = magnitude(rhs) if start is None else magnitude(torch.cat([rhs, start]))
    rhs, start = rhs / scale, None if start is None else start / scale
    stopping = stopping._replace(atol=stopping.atol / scale)
    bound = stopping.bound(rhs, eps)
    x, iterations = method(matvec, rhs, start, bound, stopping.limit(rhs.shape[0]))
    residual = rhs - matvec(x)
    length = norm(residual)
    converged = (length <= stopping.accepted(rhs, eps)) & length.isfinite()
    return Solved(scale * x, iterations, relative_norm(residual, rhs), converged)


def dense(matvec: OnVector, b: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.linalg.solve(matrix_of(matvec, b), b), no_iterations(b)


def dense_or_nan(matvec: OnVector, b: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Like dense, but the solution of a singular system is nan, for each sample by itself."""
    x, failed = torch.linalg.solve_ex(matrix_of(matvec, b), b)
    return torch.where(failed == 0, x, torch.nan), no_iterations(b)


def no_iterations(b: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=b.device)


def matrix_of(matvec: OnVector, like: Tensor) -> Tensor:
    """The matrix of a linear function of vectors."""
    basis = torch.eye(like.shape[0], dtype=like.dtype, device=like.device)
    matrix: Tensor = vmap(matvec, out_dims=1)(basis)
    return matrix


def jacobian_of(f: OnVector, x: Tensor) -> Tensor:
    """The Jacobian of a function of vectors, column by column."""
    return matrix_of(lambda v: jvp(f, (x,), (v,))[1], x)


def preconditioned(method: Method, precondition: OnVector) -> Method:
    """The method for ``A M y = b`` with ``x = M y``, whose residual is that of ``A x = b``."""

    def solve(
        matvec: OnVector, b: Tensor, x0: Tensor | None, bound: Tensor, limit: int
    ) -> tuple[Tensor, Tensor]:
        x, r = _start(matvec, b, x0)
        y, iterations = method(lambda v: matvec(precondition(v)), r, None, bound, limit)
        return x + precondition(y), iterations

    return solve


def _start(matvec: OnVector, b: Tensor, x0: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the first solution and its residual, both of the batch sizes that later ones have."""
    if x0 is None:
        return torch.zeros_like(b), b
    return x0 + torch.zeros_like(b), b - matvec(x0)


def cg(
    matvec: OnVector,
    b: Tensor,
    x0: Tensor | None,
    bound: Tensor,
    limit: int,
    precondition: OnVector | None = None,
) -> tuple[Tensor, Tensor]:
    if precondition is not None:
        return _preconditioned_cg(matvec, b, x0, bound, limit, precondition)
    x, r = _start(matvec, b, x0)

    def body(i: Any, carry: Carry) -> Carry:
        x, r, p, rr = carry
        ap = matvec(p)
        alpha = rr / torch.dot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = torch.dot(r, r)
        return x, r, r + new / rr * p, new

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[3].sqrt(), bound)

    (x, *_), iterations = count_iterations(goes_on, body, (x, r, r, torch.dot(r, r)), limit)
    return x, iterations


def _preconditioned_cg(
    matvec: OnVector,
    b: Tensor,
    x0: Tensor | None,
    bound: Tensor,
    limit: int,
    precondition: OnVector,
) -> tuple[Tensor, Tensor]:
    x, r = _start(matvec, b, x0)
    z = precondition(r)

    def body(i: Any, carry: Carry) -> Carry:
        x, r, p, rz, _ = carry
        ap = matvec(p)
        alpha = rz / torch.dot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        z = precondition(r)
        new = torch.dot(r, z)
        return x, r, z + ratio_or_zero(new, rz) * p, new, torch.dot(r, r)

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[4].sqrt(), bound)

    start = (x, r, z, torch.dot(r, z), torch.dot(r, r))
    (x, *_), iterations = count_iterations(goes_on, body, start, limit)
    return x, iterations


def bicgstab(
    matvec: OnVector, b: Tensor, x0: Tensor | None, bound: Tensor, limit: int
) -> tuple[Tensor, Tensor]:
    x, r = _start(matvec, b, x0)
    shadow = r

    def body(i: Any, carry: Carry) -> Carry:
        x, r, p, rho, _ = carry
        ap = matvec(p)
        alpha = rho / torch.dot(shadow, ap)
        s = r - alpha * ap
        as_ = matvec(s)
        # s is zero if the first half of the step has found the solution.
        length = norm(as_)
        omega = ratio_or_zero(torch.dot(ratio_or_zero(as_, length), s), length)
        x = x + alpha * p + omega * s
        r = s - omega * as_
        new = torch.dot(shadow, r)
        p = r + ratio_or_zero(new, rho) * ratio_or_zero(alpha, omega) * (p - omega * ap)
        return x, r, p, new, torch.dot(r, r)

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[4].sqrt(), bound)

    rho = torch.dot(r, r)
    (x, *_), iterations = count_iterations(goes_on, body, (x, r, r, rho, rho), limit)
    return x, iterations


def gmres(
    matvec: OnVector,
    b: Tensor,
    x0: Tensor | None,
    bound: Tensor,
    limit: int,
    restart: int = 20,
) -> tuple[Tensor, Tensor]:
    """The adaptive simpler GMRES of Jiranek and Rozloznik (2010), restarted.

    A cycle orthonormalizes A z for directions z, as A Z = Q R with the vectors as rows, and each
    step projects the residual on the new row of Q. So the least-squares problem is solved as it
    grows, and a triangular system at the end of the cycle gives x. A direction is the residual
    where it has become smaller, or else the last row of Q, with which the method can't stagnate.
    Both are combinations of the cycle's first residual and the rows of Q, so that only their
    coefficients are kept, as the rows of C.
    """
    count = min(restart, b.shape[0])
    rows = torch.arange(count, device=b.device)
    eye = torch.eye(count + 1, dtype=b.dtype, device=b.device)
    no_rows = torch.zeros(count, b.shape[0], dtype=b.dtype, device=b.device)
    x, r = _start(matvec, b, x0)

    def step(j: Any, carry: Carry) -> Carry:
        r, z, Q, R, C, projections, residual = carry
        is_new, is_next = rows == j, rows == j + 1
        w = matvec(z)
        h = Q @ w
        w = w - h @ Q
        again = Q @ w  # Gram-Schmidt twice, for orthogonality to working precision
        w = w - again @ Q
        length = norm(w)
        q = ratio_or_zero(w, length)
        diagonal = torch.where(length == 0, 1.0, length)  # for a singular matrix
        alpha = torch.dot(q, r)
        r = r - alpha * q
        now = norm(r)
        Q = torch.where(is_new[:, None], q, Q)
        R = torch.where(is_new, torch.where(is_new, diagonal, h + again)[:, None], R)
        projections = torch.where(is_new, alpha, projections)
        is_smaller = now < 0.9 * residual
        z = torch.where(is_smaller, ratio_or_zero(r, now), q)
        of_residual = ratio_or_zero(torch.cat([eye[0, :1], -projections]), now)
        of_last = torch.cat([eye[0, 1:2], is_new.to(b.dtype)])
        C = torch.where(is_next[:, None], torch.where(is_smaller, of_residual, of_last), C)
        return r, z, Q, R, C, projections, now

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[-1], bound)

    def cycle(i: Any, carry: Carry) -> Carry:
        x, r, residual, total = carry
        C = eye[:count] / residual  # its first row; the others are replaced
        start = (r, r / residual, no_rows, eye[1:, 1:], C, no_rows[:, 0], residual)
        last, iterations = count_iterations(goes_on, step, start, min(count, limit))
        _, _, Q, R, C, projections, _ = last
        y = torch.linalg.solve_triangular(R, projections[:, None], upper=True)[:, 0] @ C
        x = x + y[0] * r + y[1:] @ Q
        r = b - matvec(x)
        return x, r, norm(r), total + iterations

    def is_unfinished(carry: Carry) -> Tensor:
        return _is_above(carry[2], bound)

    last, _ = count_iterations(
        is_unfinished, cycle, (x, r, norm(r), no_iterations(b)), -(-limit // count)
    )
    return last[0], last[3]


def _is_above(residual: Tensor, bound: Tensor) -> Tensor:
    """Whether to go on; not if the method has broken down."""
    return (residual > bound) & residual.isfinite()
