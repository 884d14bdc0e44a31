"""Solvers of equations: newton and fixed_point. They are undifferentiated here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit import krylov
from torchlayers.implicit.checks import Unknowns
from torchlayers.implicit.convergence import Carry, Vectors, iterate, warn_unless
from torchlayers.transforms.jvp import jvp

OnTensors = Callable[[Sequence[Tensor]], list[Tensor]]
Step = Callable[[OnTensors, list[Tensor]], list[Tensor]]


def newton(f: Callable[..., Any], x0: Any, tol: float | None = None, maxiter: int = 50) -> Any:
    """Newton's method, each step a direct solve for few unknowns, or gmres for many."""
    return _iterated("newton", _newton_step, f, x0, tol, maxiter)


def fixed_point(
    f: Callable[..., Any], x0: Any, tol: float | None = None, maxiter: int = 1000
) -> Any:
    return _iterated("fixed_point", lambda f, x: f(x), f, x0, tol, maxiter)


def _newton_step(f: OnTensors, x: list[Tensor]) -> list[Tensor]:
    def push(v: Any) -> Any:
        return tuple(jvp(lambda *x: tuple(f(x)), tuple(x), tuple(v))[1])

    step = krylov.solve("newton: gmres", krylov.direct_or_gmres, push, tuple(f(x)))
    return [a - b for a, b in zip(x, step, strict=True)]


def _iterated(
    name: str, step: Step, f: Callable[..., Any], x0: Any, tol: float | None, maxiter: int
) -> Any:
    """Repeats x = step(f, x) until x changes by at most tol, relative to 1 + norm(x)."""
    unknowns = Unknowns(name, "x0", x0)
    form = Vectors(unknowns.tensors)
    limits = torch.finfo(form.dtype)
    allowed = limits.eps**0.75 if tol is None else tol

    def on_tensors(x: Sequence[Tensor]) -> list[Tensor]:
        return unknowns.of("f", f(unknowns.put_in(x)))

    def body(i: Any, carry: Carry) -> Carry:
        x = form.join(step(on_tensors, form.split(carry[0])))
        change = krylov.norm(x - carry[0]) / (1 + krylov.norm(x))
        return x, change

    def goes_on(carry: Carry) -> Tensor:
        return (carry[1] > allowed) & carry[1].isfinite()

    x = form.join(unknowns.tensors)
    x, change = iterate(goes_on, body, (x, x.new_full((), limits.max)), maxiter)
    accepted = limits.eps**0.5 if tol is None else tol
    warn_unless(
        change <= accepted, name, change, tol, "Start closer to the solution, or raise maxiter."
    )
    return unknowns.put_in(form.split(x))
