"""Solution: what the solvers return; and whether a solver has converged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.control_flow import debug
from torchlayers.implicit.convergence import Carry, iterate, warn_unless


class Solution(NamedTuple):
    """The result of a solver: a pytree, so that it can be returned from any transform.

    Only the value is differentiated. Under vmap, each sample has an entry of its own in all four.

    Attributes:
        value: the solution, in the structure of the start or of the right-hand side.
        converged: a bool tensor: whether the residual is as small as it should be.
        iterations: how many there were, an int64 tensor; 0 for a direct solver.
        residual: what the tolerance is compared with; each solver's docstring says what it is.

    Example:
        >>> solution = torchlayers.implicit.find_root(lambda x: x**2 - 2, torch.tensor(1.0))
        >>> solution.value, solution.converged, solution.iterations
        (tensor(1.4142), tensor(True), tensor(4))

    Source: optimistix.Solution; scipy.optimize.OptimizeResult.
    """

    value: Any
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class Outcome(NamedTuple):
    """What a method on single vectors returns."""

    x: Tensor
    iterations: Tensor
    residual: Tensor


class Tolerance(NamedTuple):
    """The residual at which to stop, and the one above which a solver has not converged.

    The default is close to what rounding allows, so a result may miss it by some digits.
    """

    tol: float | None
    eps: float

    @property
    def allowed(self) -> float:
        return self.eps**0.75 if self.tol is None else self.tol

    @property
    def accepted(self) -> float:
        return self.eps**0.5 if self.tol is None else self.tol


def judge(api: str, tolerance: Tolerance, outcome: Outcome, throw: bool, hint: str) -> Tensor:
    """Returns whether a solver has converged. Warns where it has not, unless throw is set."""
    converged = outcome.residual <= tolerance.accepted
    if not throw:
        warn_unless(converged, api, outcome.residual, tolerance.tol, hint)
    return converged


def raise_unless_converged(api: str, solution: Solution) -> None:
    debug.check(
        solution.converged,
        f"{api} did not converge",
        iterations=solution.iterations,
        residual=solution.residual,
    )


def count_iterations(
    goes_on: Callable[[Carry], Tensor],
    body: Callable[[Any, Carry], Carry],
    carry: Carry,
    limit: int,
) -> tuple[Carry, Tensor]:
    """As iterate; returns the number of iterations of each sample too."""
    *last, count = iterate(
        lambda carry: goes_on(carry[:-1]),
        lambda i, carry: (*body(i, carry[:-1]), carry[-1] + 1),
        (*carry, torch.zeros((), dtype=torch.int64, device=carry[0].device)),
        limit,
    )
    return tuple(last), count
