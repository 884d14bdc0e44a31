"""minimize, least_squares, find_root and find_fixed_point: solvers that return a Solution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import CallError, NotScalarError, StructureError, location
from torchlayers.core.function_checks import check_function
from torchlayers.implicit import minimizers, mixing, nonlinear, scalar_roots, squares
from torchlayers.implicit.checks import Unknowns
from torchlayers.implicit.convergence import Vectors
from torchlayers.implicit.linear_system import default_solve
from torchlayers.implicit.root import differentiable_root
from torchlayers.implicit.solution import (
    Outcome,
    Solution,
    Tolerance,
    judge,
    raise_unless_converged,
)
from torchlayers.transforms.grad import grad
from torchlayers.transforms.vjp import vjp

T = TypeVar("T")


class Problem:
    """A function of a pytree, as a function of a single real vector.

    Attributes:
        form: how the pytree is a vector.
        tolerance: when to stop.
    """

    def __init__(self, api: str, x0: Any, tol: float | None, maxiter: int) -> None:
        self.api = api
        self.unknowns = Unknowns(api, "x0", x0)
        self.form = Vectors(self.unknowns.tensors)
        self.tolerance = Tolerance(tol, self.form.eps)
        self.allowed = self.tolerance.allowed
        self.eps = self.form.eps
        self.maxiter = maxiter

    def tree(self, x: Tensor) -> Any:
        return self.unknowns.put_in(self.form.split(x))

    def vector(self, name: str, result: Any) -> Tensor:
        return self.form.join(self.unknowns.leaves_of(name, result))


def _solved(
    problem: Problem,
    run: Callable[[Tensor], Outcome],
    equation: Callable[..., Any],
    x0: Any,
    hint: str,
    throw: bool,
    tangent_solve: Callable[..., Any] | None,
    residual: Callable[..., Any] | None = None,
    symmetric: bool = False,
) -> Solution:
    """Runs a method, and differentiates its result as a root of the equation."""
    check_function(problem.api, "tangent_solve", tangent_solve, optional=True)

    def solve(_: Any, __: Any) -> Any:
        outcome = run(problem.form.join(problem.unknowns.tensors))
        converged = judge(problem.api, problem.tolerance, outcome, throw, hint)
        return problem.tree(outcome.x), (converged, outcome.iterations, outcome.residual)

    value, aux = differentiable_root(
        problem.api,
        residual,
        equation,
        x0,
        solve,
        tangent_solve or default_solve,
        True,
        "x0",
        symmetric,
    )
    solution = Solution(value, *aux)
    if throw:
        raise_unless_converged(problem.api, solution)
    return solution


def _choose(api: str, method: str, methods: Mapping[str, T]) -> T:
    if method not in methods:
        names = ", ".join(repr(name) for name in methods)
        raise CallError(
            f"torchlayers: {api}: method must be one of {names}; got {method!r}.{location()}"
        )
    return methods[method]


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
    chosen = _choose(api, method, methods)
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
    return _solved(problem, run, grad(scalar), x0, hint, throw, tangent_solve, symmetric=True)


_SQUARES: dict[str, squares.Method] = {
    "lm": squares.LevenbergMarquardt(),
    "dogleg": squares.Dogleg(),
    "gauss_newton": squares.GaussNewton(),
}


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
    chosen = _choose(api, method, _SQUARES)
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
    return _solved(problem, run, gradient, x0, hint, throw, tangent_solve, symmetric=True)


def _joined(api: str, residuals: Any, dtype: torch.dtype) -> Tensor:
    leaves = pytree.leaves(residuals)
    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        names = sorted({type(leaf).__name__ for leaf in leaves} - {"Tensor"})
        raise StructureError(
            f"torchlayers: {api}: f must return a tensor or a pytree of tensors, but returned "
            f"{', '.join(names) or 'none'}.{location()}"
        )
    return Vectors(leaves).join(leaves).to(dtype)


@tracing_state.skipped_while_tracing
def find_root(
    f: Callable[..., Any],
    x0: Any = None,
    method: str | None = None,
    *,
    bracket: tuple[Tensor, Tensor] | None = None,
    tol: float | None = None,
    maxiter: int | None = None,
    history: int = 20,
    throw: bool = False,
    tangent_solve: Callable[..., Any] | None = None,
) -> Solution:
    """A solution x of ``f(x) = 0``, as of :func:`torchlayers.custom_root`, with how it went.

    Args:
        f: takes and returns a pytree like x0, or with a bracket a 0-dim tensor.
        x0: where to start: a tensor or a pytree of tensors. Not differentiated.
        method: "newton"; "broyden", which needs one Jacobian, at the start, and none for more than
            128 unknowns; "lm" or "dogleg" (of :func:`least_squares`), which converge from further
            away. With a bracket "brent" or "bisection". By default newton, or brent.
        bracket: two 0-dim tensors between which f changes its sign. Under vmap, each sample has its
            own.
        tol: it stops when the residual is at most tol. By default eps ** 0.75, and one of
            eps ** 0.5 gives no warning.
        maxiter: the largest number of iterations. By default 50 for newton, 200 for the others.
        history: after so many iterations "broyden" forgets what it has learned.
        throw, tangent_solve: as of :func:`minimize`.
    Returns:
        A :class:`Solution`. The residual is the last step, relative to ``1 + norm(x)``; with a
        bracket its width, relative to ``1 + abs(x)``, and nan if f doesn't change its sign there;
        for lm and dogleg the size of f in units of such a step.
    Raises:
        StructureError: f returned something unlike x0.
        CheckError, CallError: as :func:`minimize`; or there must be a bracket instead of x0.
        The errors of :func:`torchlayers.custom_root`.
    Warns:
        ConvergenceWarning: it did not converge. A compiled function doesn't warn.
    Example:
        >>> from torchlayers.implicit import find_root
        >>> def angle(a):
        ...     bracket = torch.tensor(0.0), torch.tensor(3.0)
        ...     return find_root(lambda x: x - a * torch.sin(x) - 1, bracket=bracket).value
        >>> torchlayers.vmap(torchlayers.grad(angle))(torch.tensor([0.0, 0.5]))
        tensor([0.8415, 1.0347])

    Source: optimistix.root_find; Brent, "Algorithms for minimization without derivatives" (1973);
        Broyden, "A class of methods for solving nonlinear simultaneous equations" (1965).
    """
    api = "find_root"
    check_function(api, "f", f)
    if bracket is not None:
        if x0 is not None:
            raise CallError("torchlayers: find_root: give either x0 or a bracket, not both.")
        methods = {"brent": scalar_roots.brent, "bisection": scalar_roots.bisection}
        chosen = _choose(f"{api} with a bracket", method or "brent", methods)
        return _between(f, bracket, chosen, tol, maxiter or 200, throw, tangent_solve)
    if x0 is None:
        raise CallError("torchlayers: find_root: it needs x0, or bracket=(low, high).")
    names = dict.fromkeys(["newton", "broyden", "lm", "dogleg"], 200) | {"newton": 50}
    if method in ("brent", "bisection"):
        raise CallError(f"torchlayers: find_root: method={method!r} needs bracket=(low, high).")
    limit = _choose(api, method or "newton", names)
    problem = Problem(api, x0, tol, maxiter or limit)
    run = _root_method(problem, f, method or "newton", history)
    hint = "Start closer to the solution, raise maxiter, or try method='lm'."
    return _solved(problem, run, f, x0, hint, throw, tangent_solve)


def _root_method(
    problem: Problem, f: Callable[..., Any], method: str, history: int
) -> Callable[[Tensor], Outcome]:
    def on_tensors(x: Sequence[Tensor]) -> list[Tensor]:
        return problem.unknowns.leaves_of("f", f(problem.unknowns.put_in(x)))

    def on_vector(v: Tensor) -> Tensor:
        return problem.form.join(on_tensors(problem.form.split(v)))

    last = problem.allowed, problem.eps, problem.maxiter
    if method == "newton":
        step = nonlinear.newton_step
        return lambda x: nonlinear.until_small(step, on_tensors, problem.form, x, last[0], last[2])
    if method == "broyden":
        return lambda x: mixing.broyden(on_vector, x, *last, history)
    chosen = _SQUARES[method]
    return lambda x: squares.least_squares(on_vector, x, chosen, squares.size_of_residual, *last)


def _between(
    f: Callable[..., Any],
    bracket: Sequence[Tensor],
    method: Callable[..., Outcome],
    tol: float | None,
    maxiter: int,
    throw: bool,
    tangent_solve: Callable[..., Any] | None,
) -> Solution:
    ends = Unknowns("find_root", "bracket", tuple(bracket)).tensors
    if len(ends) != 2 or any(end.dim() or end.is_complex() for end in ends):
        shapes = ", ".join(str(tuple(end.shape)) for end in ends)
        raise CallError(
            "torchlayers: find_root: bracket must be two real tensors without dimensions, got "
            f"shapes {shapes}. For many equations, call it under vmap."
        )
    low, high = (end.detach() for end in ends)
    middle = low + 0.5 * (high - low)
    problem = Problem("find_root", middle, tol, maxiter)

    def on_number(x: Tensor) -> Tensor:
        return problem.vector("f", f(problem.tree(x[None])))[0]

    def run(x: Tensor) -> Outcome:
        dtype = x.dtype
        outcome = method(
            on_number, low.to(dtype), high.to(dtype), problem.allowed, problem.eps, maxiter
        )
        return outcome._replace(x=outcome.x[None])

    hint = "f must have different signs at both ends of the bracket."
    return _solved(problem, run, f, middle, hint, throw, tangent_solve)


@tracing_state.skipped_while_tracing
def find_fixed_point(
    f: Callable[..., Any],
    x0: Any,
    method: str = "anderson",
    *,
    tol: float | None = None,
    maxiter: int = 1000,
    history: int = 5,
    throw: bool = False,
    tangent_solve: Callable[..., Any] | None = None,
) -> Solution:
    """A solution x of ``f(x) = x``, as of :func:`torchlayers.custom_fixed_point`, with how it went.

    Args:
        f: takes and returns a pytree like x0.
        x0: where to start: a tensor or a pytree of tensors. Not differentiated.
        method: "anderson" combines the last values of f so that their changes cancel; "iteration"
            repeats ``x = f(x)``, for contractions; "broyden" and "newton" are those of
            :func:`find_root`, for ``x - f(x)``.
        tol: it stops when the residual is at most tol. By default eps ** 0.75, and one of
            eps ** 0.5 gives no warning.
        maxiter: the largest number of iterations.
        history: how many values "anderson" combines; after four times as many iterations "broyden"
            forgets what it has learned.
        throw, tangent_solve: as of :func:`minimize`.
    Returns:
        A :class:`Solution`. The residual is ``norm(f(x) - x)``, or for broyden and newton the last
        step, relative to ``1 + norm(x)``.
    Raises:
        StructureError: f returned something unlike x0.
        CheckError, CallError: as :func:`minimize`.
        The errors of :func:`torchlayers.custom_fixed_point`.
    Warns:
        ConvergenceWarning: it did not converge. A compiled function doesn't warn.
    Example:
        >>> from torchlayers.implicit import find_fixed_point
        >>> def wave(a):
        ...     return find_fixed_point(lambda x: torch.cos(a * x), torch.ones(())).value
        >>> torchlayers.vmap(torchlayers.grad(wave))(torch.tensor([0.5, 1.0]))
        tensor([-0.3218, -0.2975])

    Source: optimistix.fixed_point; jaxopt.AndersonAcceleration; Anderson, "Iterative procedures for
        nonlinear integral equations" (1965); Walker and Ni, "Anderson acceleration for fixed-point
        iterations" (2011).
    """
    api = "find_fixed_point"
    check_function(api, "f", f)
    problem = Problem(api, x0, tol, maxiter)

    def on_tensors(x: Sequence[Tensor]) -> list[Tensor]:
        return problem.unknowns.leaves_of("f", f(problem.unknowns.put_in(x)))

    def minus(x: Any) -> Any:
        tensors = pytree.TensorLeaves(x).tensors
        pairs = zip(tensors, on_tensors(tensors), strict=True)
        return problem.unknowns.put_in([a - b for a, b in pairs])

    def on_vector(v: Tensor) -> Tensor:
        return problem.form.join(on_tensors(problem.form.split(v)))

    last = problem.allowed, problem.eps, maxiter

    def iteration(x: Tensor) -> Outcome:
        step = lambda f, x: f(x)  # noqa: E731
        return nonlinear.until_small(step, on_tensors, problem.form, x, last[0], maxiter)

    run = _choose(
        api,
        method,
        {
            "anderson": lambda x: mixing.anderson(on_vector, x, *last, history),
            "iteration": iteration,
            "broyden": _root_method(problem, minus, "broyden", 4 * history),
            "newton": _root_method(problem, minus, "newton", 0),
        },
    )
    hint = "Start closer to the solution, raise maxiter, or try another method."
    return _solved(problem, run, minus, x0, hint, throw, tangent_solve)
