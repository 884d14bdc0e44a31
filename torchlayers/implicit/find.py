"""find_root and find_fixed_point: solutions of equations that return a Solution."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import CallError
from torchlayers.core.function_checks import check_function
from torchlayers.implicit import mixing, nonlinear, scalar_roots, squares
from torchlayers.implicit.checks import Unknowns
from torchlayers.implicit.problem import Problem, choose, solve_problem
from torchlayers.implicit.solution import Outcome, Solution


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
        chosen = choose(f"{api} with a bracket", method or "brent", methods)
        return _between(f, bracket, chosen, tol, maxiter or 200, throw, tangent_solve)
    if x0 is None:
        raise CallError("torchlayers: find_root: it needs x0, or bracket=(low, high).")
    names = dict.fromkeys(["newton", "broyden", "lm", "dogleg"], 200) | {"newton": 50}
    if method in ("brent", "bisection"):
        raise CallError(f"torchlayers: find_root: method={method!r} needs bracket=(low, high).")
    limit = choose(api, method or "newton", names)
    problem = Problem(api, x0, tol, maxiter or limit)
    run = _root_method(problem, f, method or "newton", history)
    hint = "Start closer to the solution, raise maxiter, or try method='lm'."
    return solve_problem(problem, run, f, x0, hint, throw, tangent_solve)


def _root_method(
    problem: Problem, f: Callable[..., Any], method: str, history: int
) -> Callable[[Tensor], Outcome]:
    on_tensors, on_vector = problem.on_tensors(f), problem.on_vector(f)
    last = problem.allowed, problem.eps, problem.maxiter
    if method == "newton":
        step = nonlinear.newton_step
        return lambda x: nonlinear.until_small(step, on_tensors, problem.form, x, last[0], last[2])
    if method == "broyden":
        return lambda x: mixing.broyden(on_vector, x, *last, history)
    chosen = squares.METHODS[method]
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
    return solve_problem(problem, run, f, middle, hint, throw, tangent_solve)


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

    on_tensors, on_vector = problem.on_tensors(f), problem.on_vector(f)

    def minus(x: Any) -> Any:
        tensors = pytree.TensorLeaves(x).tensors
        pairs = zip(tensors, on_tensors(tensors), strict=True)
        return problem.unknowns.put_in([a - b for a, b in pairs])

    last = problem.allowed, problem.eps, maxiter

    def iteration(x: Tensor) -> Outcome:
        step = lambda f, x: f(x)  # noqa: E731
        return nonlinear.until_small(step, on_tensors, problem.form, x, last[0], maxiter)

    run = choose(
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
    return solve_problem(problem, run, minus, x0, hint, throw, tangent_solve)
