"""A problem that a method on single vectors solves, and its Solution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from torchlayers.core.errors import CallError, location
from torchlayers.core.function_checks import check_function
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

    def on_tensors(self, f: Callable[..., Any]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """f as a function of the leaves."""
        return lambda x: self.unknowns.leaves_of("f", f(self.unknowns.put_in(x)))

    def on_vector(self, f: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        return lambda v: self.vector("f", f(self.tree(v)))


def solve_problem(
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


def choose(api: str, method: str, methods: Mapping[str, T]) -> T:
    if method not in methods:
        names = ", ".join(repr(name) for name in methods)
        raise CallError(
            f"torchlayers: {api}: method must be one of {names}; got {method!r}.{location()}"
        )
    return methods[method]
