"""Solvers of linear systems on single real vectors: dense, cg, bicgstab and gmres.

They are undifferentiated here; solvers.py has the public functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.implicit.convergence import Carry, Vectors, iterate, warn_unless
from torchlayers.transforms.vmap import vmap

# Up to this many unknowns, `direct_or_gmres` makes the matrix.
DENSE_LIMIT = 128

OnVector = Callable[[Tensor], Tensor]
Method = Callable[[OnVector, Tensor, Tensor | None, "Stopping"], Tensor]


class Stopping(NamedTuple):
    """When an iterative solver stops: at a residual of max(tol * norm(b), atol)."""

    tol: float | None
    atol: float
    maxiter: int | None

    def bound(self, b: Tensor) -> Tensor:
        tol: float = torch.finfo(b.dtype).eps ** 0.75 if self.tol is None else self.tol
        return (tol * norm(b)).clamp(min=self.atol)

    def limit(self, unknowns: int) -> int:
        return min(10 * unknowns, 1000) if self.maxiter is None else self.maxiter

    def accepted(self, b: Tensor) -> Tensor:
        """The residual above which there is a warning. The default tolerance is close to what
        rounding allows, so it may be missed by some digits."""
        if self.tol is not None:
            return self.bound(b) * 1.01
        allowed: float = torch.finfo(b.dtype).eps ** 0.5
        return (allowed * norm(b)).clamp(min=self.atol)


def solve(
    name: str,
    method: Method,
    matvec: Callable[[Any], Any],
    b: Any,
    x0: Any = None,
    stopping: Stopping = Stopping(None, 0.0, None),  # noqa: B008
) -> Any:
    """Solves matvec(x) = b by one of the methods below, on pytrees; warns if that fails."""
    given = pytree.TensorLeaves(b)
    if not given.tensors:
        raise TransformError(f"torchlayers: {name}: b has no tensors.")
    form = Vectors(given.tensors)

    def on_vector(v: Tensor) -> Tensor:
        return form.join(pytree.TensorLeaves(matvec(given.put_in(form.split(v)))).tensors)

    rhs = form.join(given.tensors)
    start = None if x0 is None else form.join(pytree.TensorLeaves(x0).tensors)
    if not rhs.numel():
        return b
    x = method(on_vector, rhs, start, stopping)
    is_direct = method is dense or (method is direct_or_gmres and rhs.numel() <= DENSE_LIMIT)
    if not is_direct:
        residual = norm(rhs - on_vector(x))
        warn_unless(
            residual <= stopping.accepted(rhs),
            name,
            residual / norm(rhs).clamp(min=torch.finfo(rhs.dtype).tiny),
            stopping.tol,
            "Raise maxiter, precondition the system, or use another solver.",
        )
    return given.put_in(form.split(x))


def norm(x: Tensor) -> Tensor:
    return x.square().sum().sqrt()


def dense(matvec: OnVector, b: Tensor, x0: Tensor | None, stopping: Stopping) -> Tensor:
    basis = torch.eye(b.shape[0], dtype=b.dtype, device=b.device)
    matrix = vmap(matvec, out_dims=1)(basis)
    return torch.linalg.solve(matrix, b)


def direct_or_gmres(matvec: OnVector, b: Tensor, x0: Tensor | None, stopping: Stopping) -> Tensor:
    """The default: dense for few unknowns, gmres for many."""
    return (dense if b.shape[0] <= DENSE_LIMIT else gmres)(matvec, b, x0, stopping)


def _start(matvec: OnVector, b: Tensor, x0: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the first solution and its residual, both of the batch sizes that later ones have."""
    if x0 is None:
        return torch.zeros_like(b), b
    return x0 + torch.zeros_like(b), b - matvec(x0)


def cg(matvec: OnVector, b: Tensor, x0: Tensor | None, stopping: Stopping) -> Tensor:
    bound = stopping.bound(b)
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

    return iterate(goes_on, body, (x, r, r, torch.dot(r, r)), stopping.limit(b.shape[0]))[0]


def bicgstab(matvec: OnVector, b: Tensor, x0: Tensor | None, stopping: Stopping) -> Tensor:
    bound = stopping.bound(b)
    x, r = _start(matvec, b, x0)
    shadow = r

    def body(i: Any, carry: Carry) -> Carry:
        x, r, p, rho, _ = carry
        ap = matvec(p)
        alpha = rho / torch.dot(shadow, ap)
        s = r - alpha * ap
        as_ = matvec(s)
        # s is zero if the first half of the step has found the solution.
        omega = _ratio(torch.dot(as_, s), torch.dot(as_, as_))
        x = x + alpha * p + omega * s
        r = s - omega * as_
        new = torch.dot(shadow, r)
        p = r + _ratio(new, rho) * _ratio(alpha, omega) * (p - omega * ap)
        return x, r, p, new, torch.dot(r, r)

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[4].sqrt(), bound)

    rho = torch.dot(r, r)
    return iterate(goes_on, body, (x, r, r, rho, rho), stopping.limit(b.shape[0]))[0]


def gmres(
    matvec: OnVector, b: Tensor, x0: Tensor | None, stopping: Stopping, restart: int = 20
) -> Tensor:
    """Restarted every `restart` steps; one step is one trip of the loop.

    The carry holds the Arnoldi basis as the rows of V, and the Hessenberg matrix H of a whole
    cycle. A column that is not there yet is a unit vector, so that its coefficient is zero in the
    least-squares problem.
    """
    count = min(restart, b.shape[0])
    bound = stopping.bound(b)
    eye = torch.eye(count + 1, dtype=b.dtype, device=b.device)
    first, empty = eye[0], eye[:, 1:]
    rows = torch.arange(count + 1, device=b.device)
    x, r = _start(matvec, b, x0)
    beta = norm(r)

    def basis_from(r: Tensor, length: Tensor) -> Tensor:
        return first[:, None] * _ratio(r, length)

    def body(i: Any, carry: Carry) -> Carry:
        x, V, H, beta, _, _ = carry
        j = i % count
        w = matvec(_row(V, j))
        h = V @ w
        w = w - h @ V
        again = V @ w  # Gram-Schmidt twice, for orthogonality to working precision
        w = w - again @ V
        length = norm(w)
        column = torch.where(rows == j + 1, length, h + again)
        H = torch.where(rows[:count] == j, column[:, None], H)
        V = torch.where((rows == j + 1)[:, None], _ratio(w, length), V)
        Q, R = torch.linalg.qr(H)
        y = torch.linalg.solve_triangular(R, (beta * Q[0])[:, None], upper=True)[:, 0]
        rest = beta * first - H @ y
        residual = norm(rest)

        def restarted() -> Carry:
            r = rest @ V
            return (
                x + y @ V[:count],
                basis_from(r, norm(r)),
                empty + 0 * H,
                norm(r),
                residual,
                0 * y,
            )

        within = (x, V, H, beta, residual, y)
        if isinstance(j, int):
            return restarted() if j == count - 1 else within
        pairs = zip(restarted(), within, strict=True)
        return tuple(torch.where(j == count - 1, *pair) for pair in pairs)

    def goes_on(carry: Carry) -> Tensor:
        return _is_above(carry[4], bound)

    start = (x, basis_from(r, beta), empty, beta, beta, torch.zeros_like(first[1:]))
    x, V, _, _, _, y = iterate(goes_on, body, start, stopping.limit(b.shape[0]))
    return x + y @ V[:count]


def _is_above(residual: Tensor, bound: Tensor) -> Tensor:
    """Whether to go on; not if the method has broken down."""
    return (residual > bound) & residual.isfinite()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, or zero where b is zero."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def _row(matrix: Tensor, j: Any) -> Tensor:
    return matrix[j] if isinstance(j, int) else matrix.index_select(0, j.reshape(1))[0]
