"""Solvers of equations: newton and fixed_point. They are undifferentiated here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit import krylov
from torchlayers.implicit.checks import Unknowns
from torchlayers.implicit.convergence import Carry, Vectors, relative_change
from torchlayers.implicit.solution import Outcome, Tolerance, count_iterations, judge
from torchlayers.transforms.jvp import jvp

OnTensors = Callable[[Sequence[Tensor]], list[Tensor]]
Step = Callable[[OnTensors, list[Tensor]], list[Tensor]]


def newton(f: Callable[..., Any], x0: Any, tol: float | None = None, maxiter: int = 50) -> Any:
    """Newton's method, each step a direct solve for few unknowns, or gmres for many."""
    return _iterated("newton", newton_step, f, x0, tol, maxiter)


def fixed_point(
    f: Callable[..., Any], x0: Any, tol: float | None = None, maxiter: int = 1000
) -> Any:
    return _iterated("fixed_point", lambda f, x: f(x), f, x0, tol, maxiter)


def newton_step(f: OnTensors, x: list[Tensor]) -> list[Tensor]:
    x = [tensor.contiguous() for tensor in x]  # a start may be expanded, which jvp refuses

    def push(v: Any) -> Any:
        return tuple(jvp(lambda *x: tuple(f(x)), tuple(x), tuple(v))[1])

    # A singular Jacobian ends one sample's iteration, not the call.
    step = krylov.solve("newton: gmres", None, push, tuple(f(x)), direct=krylov.dense_or_nan)
    return [a - b for a, b in zip(x, step, strict=True)]


def until_small(
    step: Step, f: OnTensors, form: Vectors, x: Tensor, tol: float, limit: int
) -> Outcome:
    """Repeats x = step(f, x) until x changes by at most tol, relative to 1 + norm(x)."""

    def body(i: Any, carry: Carry) -> Carry:
        x = form.join(step(f, form.split(carry[0])))
        return x, relative_change(x, carry[0])

    def goes_on(carry: Carry) -> Tensor:
        return carry[1] > tol  # not if x is no longer finite: then the change is nan

    (x, change), iterations = count_iterations(goes_on, body, (x, x.new_full((), torch.inf)), limit)
    return Outcome(x, iterations, change)


def _iterated(
    name: str, step: Step, f: Callable[..., Any], x0: Any, tol: float | None, maxiter: int
) -> Any:
    unknowns = Unknowns(name, "x0", x0)
    form = Vectors(unknowns.tensors)
    tolerance = Tolerance(tol, form.eps)

    def on_tensors(x: Sequence[Tensor]) -> list[Tensor]:
        return unknowns.leaves_of("f", f(unknowns.put_in(x)))

    start = form.join(unknowns.tensors)
    outcome = until_small(step, on_tensors, form, start, tolerance.allowed, maxiter)
    judge(name, tolerance, outcome, False, "Start closer to the solution, or raise maxiter.")
    return unknowns.put_in(form.split(outcome.x))
