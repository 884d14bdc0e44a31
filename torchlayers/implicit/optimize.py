"""minimize and least_squares: minima that return a Solution."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import NotScalarError, StructureError, location
from torchlayers.core.function_checks import check_function
from torchlayers.implicit import minimizers, squares
from torchlayers.implicit.convergence import Vectors
from torchlayers.implicit.problem import Problem, choose, solve_problem
from torchlayers.implicit.solution import Outcome, Solution
from torchlayers.transforms.grad import grad
from torchlayers.transforms.vjp import vjp


@tracing_state.skipped_while_tracing
def minimize(
    f: Callable[..., Any],
    x0: Any,
    method: str = "bfgs",
    *,
    tol: float | None = None,
    maxiter: int = 500,
    history: int = 10,
    throw: bool = False,
    tangent_solve: Callable[..., Any] | None = None,
) -> Solution:
    """A local minimum of f, differentiated through the condition that the gradient is zero.

    Each iteration is one value and gradient of f. Under vmap every sample has its own iterations
    and line searches. Derivatives are taken with respect to the tensors that f captures, in both
    modes and of every order, as those of :func:`torchlayers.custom_root`.

    Args:
        f: takes a pytree like x0, returns a real 0-dim tensor. Twice differentiable.
        x0: where to start: a tensor or a pytree of tensors. Not differentiated.
        method: "bfgs" keeps a matrix of n x n numbers; "lbfgs" the last steps, for many unknowns;
            "cg" a direction only: nonlinear conjugate gradients.
        tol: it stops when the residual is at most tol. By default eps ** 0.75 (2e-12 in float64,
            6e-6 in float32), and one of eps ** 0.5 gives no warning.
        maxiter: the largest number of iterations.
        history: how many steps "lbfgs" keeps.
        throw: raise an error if it did not converge, in compiled functions too, instead of warning.
        tangent_solve: as of :func:`torchlayers.custom_root`, for systems with the Hessian.
    Returns:
        A :class:`Solution`. The residual is the length of the next quasi-Newton step, relative to
        ``1 + norm(x)``, which multiplying f or adding to it does not change.
    Raises:
        NotScalarError: f's result is not a 0-dim tensor.
        CheckError: with throw, it did not converge.
        CallError: there is no such method.
        The errors of :func:`torchlayers.custom_root`.
    Warns:
        ConvergenceWarning: it did not converge. A compiled function doesn't warn.
    Example:
        >>> from torchlayers.implicit import minimize
        >>> def lowest(a):
        ...     return minimize(lambda x: (x**4).sum() / 4 - a @ x, torch.ones(2)).value
        >>> torchlayers.jacrev(lowest)(torch.tensor([1.0, 8.0]))
        tensor([[0.3333, 0.0000],
                [0.0000, 0.0833]])

    Source: optimistix.minimise; Nocedal and Wright, "Numerical optimization" (2006); Hager and
        Zhang, "A new conjugate gradient method with guaranteed descent" (2005).
    """
    api = "minimize"
    check_function(api, "f", f)
    methods: dict[str, minimizers.Method] = {
        "bfgs": minimizers.BFGS(),
        "lbfgs": minimizers.LBFGS(history),
        "cg": minimizers.NonlinearCG(),
    }
    chosen = choose(api, method, methods)
    problem = Problem(api, x0, tol, maxiter)

    def scalar(x: Any) -> Tensor:
        value = f(x)
        if not isinstance(value, Tensor) or value.dim() or value.is_complex():
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise NotScalarError(
                f"torchlayers: minimize: f must return a real tensor without dimensions, but "
                f"returned {shape}.{location()} Sum it, or use least_squares for residuals."
            )
        return value

    def run(x: Tensor) -> Outcome:
        def on_vector(v: Tensor) -> Tensor:
            return scalar(problem.tree(v)).to(v.dtype)

        return minimizers.minimize(
            on_vector, x, chosen, problem.allowed, problem.eps, problem.maxiter
        )

    hint = "Start closer to the minimum, raise maxiter or tol, or try another method."
    return solve_problem(problem, run, grad(scalar), x0, hint, throw, tangent_solve, symmetric=True)


@tracing_state.skipped_while_tracing
def least_squares(
    f: Callable[..., Any],
    x0: Any,
    method: str = "lm",
    *,
    tol: float | None = None,
    maxiter: int = 200,
    throw: bool = False,
    tangent_solve: Callable[..., Any] | None = None,
) -> Solution:
    """A local minimum of the sum of squares of f, differentiated through its gradient's equation.

    Each iteration is one Jacobian of f, made forward column by column, or in reverse if there are
    fewer residuals than unknowns, and a QR decomposition of it. Derivatives are exact where the
    residuals are not zero too: their systems have the Hessian, not its Gauss-Newton part.

    Args:
        f: takes a pytree like x0, returns a pytree of tensors: the residuals, of any number.
        x0: where to start: a tensor or a pytree of tensors. Not differentiated.
        method: "lm" (Levenberg and Marquardt), "dogleg" (Powell), or "gauss_newton", which has no
            safeguard and takes no step back.
        tol, maxiter, throw, tangent_solve: as of :func:`minimize`.
    Returns:
        A :class:`Solution`. The residual is the gradient's size in units that make it independent
        of the scales of f and x: ``norm(D⁻¹ Jᵀ f) / (norm(D x) + norm(f))``, with the lengths of
        the columns of the Jacobian J in D.
    Raises:
        StructureError: f does not return tensors.
        CheckError, CallError: as :func:`minimize`.
        The errors of :func:`torchlayers.custom_root`.
    Warns:
        ConvergenceWarning: it did not converge. A compiled function doesn't warn.
    Example:
        >>> from torchlayers.implicit import least_squares
        >>> times = torch.tensor([0.0, 1.0, 2.0])
        >>> def rate(values):
        ...     def residuals(x):
        ...         return x["size"] * torch.exp(-x["rate"] * times) - values
        ...     start = {"size": torch.tensor(1.0), "rate": torch.tensor(1.0)}
        ...     return least_squares(residuals, start).value["rate"]
        >>> rate(torch.tensor([8.0, 4.0, 2.0]))
        tensor(0.6931)
        >>> torchlayers.grad(rate)(torch.tensor([8.0, 4.0, 2.0]))
        tensor([ 0.0909, -0.1136, -0.1364])

    Source: optimistix.least_squares; Moré, "The Levenberg-Marquardt algorithm: implementation and
        theory" (1978); Nielsen, "Damping parameter in Marquardt's method" (1999); Powell, "A hybrid
        method for nonlinear equations" (1970).
    """
    api = "least_squares"
    check_function(api, "f", f)
    chosen = choose(api, method, squares.METHODS)
    problem = Problem(api, x0, tol, maxiter)

    def run(x: Tensor) -> Outcome:
        def on_vector(v: Tensor) -> Tensor:
            return _joined(api, f(problem.tree(v)), v.dtype)

        return squares.least_squares(
            on_vector, x, chosen, squares.optimality, problem.allowed, problem.eps, problem.maxiter
        )

    def gradient(x: Any) -> Any:
        residuals, pull = vjp(f, x)
        return pull(residuals)[0]

    hint = "Start closer to the minimum, raise maxiter or tol, or try another method."
    return solve_problem(problem, run, gradient, x0, hint, throw, tangent_solve, symmetric=True)


def _joined(api: str, residuals: Any, dtype: torch.dtype) -> Tensor:
    leaves = pytree.leaves(residuals)
    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        names = sorted({type(leaf).__name__ for leaf in leaves} - {"Tensor"})
        raise StructureError(
            f"torchlayers: {api}: f must return a tensor or a pytree of tensors, but returned "
            f"{', '.join(names) or 'none'}.{location()}"
        )
    return Vectors(leaves).join(leaves).to(dtype)
