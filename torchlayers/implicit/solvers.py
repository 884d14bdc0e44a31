"""Solvers of linear systems and of equations, by matrix-vector products or function values alone.

All take tensors or pytrees of tensors, stop at each sample's own convergence under vmap, can be
captured by ``torchlayers.compile``, and warn (``ConvergenceWarning``) if they did not converge.
They can be passed as ``solve`` and ``tangent_solve``, with options by functools.partial; called
directly, they are differentiated by the implicit function theorem.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torchlayers.core.function_checks import check_function
from torchlayers.implicit import krylov, nonlinear
from torchlayers.implicit.checks import WARNING_SOLVERS
from torchlayers.implicit.linear_solve import custom_linear_solve
from torchlayers.implicit.root import custom_fixed_point, custom_root
from torchlayers.implicit.sparse_solve import spsolve

__all__ = ["bicgstab", "cg", "dense", "fixed_point", "gmres", "newton", "spsolve"]


def cg(
    matvec: Callable[..., Any],
    b: Any,
    x0: Any = None,
    *,
    tol: float | None = None,
    atol: float = 0.0,
    maxiter: int | None = None,
) -> Any:
    """Solves a symmetric (Hermitian) positive definite system by conjugate gradients.

    Args:
        matvec: the linear function; takes and returns a pytree like b.
        b: the right-hand side.
        x0: where to start; by default zero.
        tol: it stops when the residual is at most ``max(tol * norm(b), atol)``. By default
            eps ** 0.75 (2e-12 in float64, 6e-6 in float32), and a result that reaches
            eps ** 0.5 gives no warning.
        atol: see tol.
        maxiter: the largest number of iterations. By default 10 for each unknown, at most 1000.
    Returns:
        The solution, in the structure of b.
    Warns:
        ConvergenceWarning: the residual is larger than it should be.
    Example:
        >>> A = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
        >>> torchlayers.implicit.solvers.cg(lambda x: A @ x, torch.tensor([1.0, 2.0]))
        tensor([0.0909, 0.6364])

    Source: Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems"
        (1952).
    """
    stopping = krylov.Stopping(tol, atol, maxiter)
    return _linear("cg", krylov.cg, matvec, b, x0, stopping, symmetric=True)


def bicgstab(
    matvec: Callable[..., Any],
    b: Any,
    x0: Any = None,
    *,
    tol: float | None = None,
    atol: float = 0.0,
    maxiter: int | None = None,
) -> Any:
    """Solves a system by the stabilized biconjugate gradient method.

    It needs little memory, and two products with the matrix in each iteration. Takes the arguments
    of :func:`cg`.

    Returns:
        The solution, in the structure of b.
    Warns:
        ConvergenceWarning: the residual is larger than it should be.
    Example:
        >>> A = torch.tensor([[4.0, 1.0], [0.0, 3.0]])
        >>> torchlayers.implicit.solvers.bicgstab(lambda x: A @ x, torch.tensor([9.0, 3.0]))
        tensor([2., 1.])

    Source: van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG" (1992).
    """
    return _linear("bicgstab", krylov.bicgstab, matvec, b, x0, krylov.Stopping(tol, atol, maxiter))


def gmres(
    matvec: Callable[..., Any],
    b: Any,
    x0: Any = None,
    *,
    tol: float | None = None,
    atol: float = 0.0,
    maxiter: int | None = None,
    restart: int = 20,
) -> Any:
    """Solves a system by the generalized minimal residual method.

    Takes the arguments of :func:`cg`, and ``restart``: after so many iterations it starts again
    from the solution so far. It holds twice as many vectors.

    Returns:
        The solution, in the structure of b.
    Warns:
        ConvergenceWarning: the residual is larger than it should be.
    Example:
        >>> A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> torchlayers.implicit.solvers.gmres(lambda x: A @ x, torch.tensor([1.0, 3.0]))
        tensor([-3.0000,  1.0000])

    Source: Saad and Schultz, "GMRES: a generalized minimal residual algorithm" (1986); Jiranek and
        Rozloznik, "Adaptive version of simpler GMRES" (2010).
    """
    method = partial(krylov.gmres, restart=restart)
    return _linear("gmres", method, matvec, b, x0, krylov.Stopping(tol, atol, maxiter))


def dense(matvec: Callable[..., Any], b: Any) -> Any:
    """Solves a system directly: makes the matrix, by one product with the identity under vmap.

    Args:
        matvec: the linear function; takes and returns a pytree like b.
        b: the right-hand side.
    Returns:
        The solution, in the structure of b.
    Raises:
        torch.linalg.LinAlgError: the matrix is singular.
    Example:
        >>> A = torch.tensor([[4.0, 1.0], [0.0, 3.0]])
        >>> torchlayers.implicit.solvers.dense(lambda x: A @ x, torch.tensor([1.0, 3.0]))
        tensor([0., 1.])
    """
    return _linear("dense", krylov.dense, matvec, b, None, krylov.Stopping(None, 0.0, None))


def _linear(
    name: str,
    method: krylov.Method,
    matvec: Callable[..., Any],
    b: Any,
    x0: Any,
    stopping: krylov.Stopping,
    symmetric: bool = False,
) -> Any:
    solve_back = partial(krylov.solve, name, method, stopping=stopping)
    solve = partial(solve_back, x0=x0)
    return custom_linear_solve(matvec, b, solve, solve_back, symmetric)


def newton(f: Callable[..., Any], x0: Any, *, tol: float | None = None, maxiter: int = 50) -> Any:
    """Solves ``f(x) = 0`` by Newton's method.

    Each step solves with the Jacobian of f: directly for up to 128 unknowns, by :func:`gmres` for
    more.

    Args:
        f: takes and returns a pytree like x0.
        x0: where to start.
        tol: it stops when x changes by at most ``tol * (1 + norm(x))``. By default eps ** 0.75, and
            a change of eps ** 0.5 gives no warning.
        maxiter: the largest number of steps.
    Returns:
        The solution, in the structure of x0.
    Warns:
        ConvergenceWarning: x still changes more than it should.
    Example:
        >>> torchlayers.implicit.solvers.newton(lambda x: x**2 - 2, torch.tensor(1.0))
        tensor(1.4142)
    """
    check_function("newton", "f", f)
    return custom_root(f, x0, partial(nonlinear.newton, tol=tol, maxiter=maxiter))


def fixed_point(
    f: Callable[..., Any], x0: Any, *, tol: float | None = None, maxiter: int = 1000
) -> Any:
    """Solves ``f(x) = x`` by repeating ``x = f(x)``.

    Args:
        f: takes and returns a pytree like x0; a contraction near the solution.
        x0: where to start.
        tol: it stops when x changes by at most ``tol * (1 + norm(x))``. By default eps ** 0.75, and
            a change of eps ** 0.5 gives no warning.
        maxiter: the largest number of iterations.
    Returns:
        The solution, in the structure of x0.
    Warns:
        ConvergenceWarning: x still changes more than it should.
    Example:
        >>> torchlayers.implicit.solvers.fixed_point(torch.cos, torch.tensor(1.0))
        tensor(0.7391)
    """
    check_function("fixed_point", "f", f)
    return custom_fixed_point(f, x0, partial(nonlinear.fixed_point, tol=tol, maxiter=maxiter))


WARNING_SOLVERS.update([cg, bicgstab, gmres, dense, krylov.solve])
