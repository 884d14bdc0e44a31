"""Least squares on single real vectors: Gauss-Newton, Levenberg-Marquardt and dogleg.

NOTE [The reduced system]
All that a step needs of the residual r and its Jacobian J is the triangle of a QR decomposition of
[J r]: R with ``R^T R = J^T J``, and c with ``R^T c = J^T r``. It has n + 1 columns, however many
residuals there are. A damped step is a least-squares problem in R again, solved by a second QR
decomposition: normal equations would square the condition number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry, norm, ratio_or_zero, select
from torchlayers.implicit.krylov import jacobian_of
from torchlayers.implicit.solution import Outcome, count_iterations
from torchlayers.implicit.structured import triangle as triangle_of
from torchlayers.transforms.vjp import vjp
from torchlayers.transforms.vmap import vmap

OnVector = Callable[[Tensor], Tensor]


class Model(NamedTuple):
    """A linear model of the residuals around a point, in units that make it independent of scales.

    Unknowns are multiplied by the lengths of the Jacobian's columns, and divided by that of the
    residual, so that nothing here overflows or vanishes where squares would.
    """

    R: Tensor
    c: Tensor  # of length one, or shorter by what no step can change
    length: Tensor  # of the residual
    widths: Tensor  # the lengths of the Jacobian's columns, the largest seen so far


def linearize(f: OnVector, x: Tensor, widths: Tensor) -> Model:
    r, matrix = _with_jacobian(f, x)
    n, length = x.shape[0], norm(r)
    columns = _positive(matrix.abs().amax(0)) if r.numel() else torch.ones_like(x)
    triangle = triangle_of(torch.cat([matrix / columns, (r / _positive(length))[:, None]], 1))
    if triangle.shape[0] < n:
        rows = triangle.new_zeros((n - triangle.shape[0], n + 1))
        triangle = torch.cat([triangle, rows])
    R, c = triangle[:n, :n], triangle[:n, n]
    widths = torch.maximum(widths, columns * torch.linalg.vector_norm(R, dim=0))
    return Model(R * (columns / _positive(widths)), c, length, widths)


def _with_jacobian(f: OnVector, x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[0]
    r, pull = vjp(f, x)
    m = r.shape[0]
    if m < n:
        eye = torch.eye(m, dtype=x.dtype, device=x.device)
        rows: Tensor = vmap(lambda row: pull(row)[0])(eye)
        return r, rows
    return r, jacobian_of(f, x)


def optimality(model: Model, x: Tensor) -> Tensor:
    """How far the residual is from orthogonal to what could change it.

    The gradient, with each unknown in units of its effect on the residuals, relative to the sizes
    of what is added up in them: |D^-1 J^T r| / (|D x| + |r|), with the lengths of the columns in D.
    It is zero if r is zero.
    """
    total = norm(model.widths * x) + model.length
    return norm(model.R.mT @ model.c) * (model.length / _positive(total))


def size_of_residual(model: Model, x: Tensor) -> Tensor:
    """How far a root is, in units of 1 + |x|, if each unknown changes the residual as much as the
    columns of the Jacobian say."""
    return model.length / (norm(_positive(model.widths)) + norm(model.widths * x))


def _positive(sizes: Tensor) -> Tensor:
    return torch.where(sizes == 0, 1.0, sizes)


def _damped_step(model: Model, damping: Tensor | float) -> Tensor:
    """Minimizes |R d + c|^2 + |damping * d|^2."""
    n = model.c.shape[0]
    eye = torch.eye(n, n + 1, dtype=model.c.dtype, device=model.c.device)
    top = torch.cat([model.R, model.c[:, None]], 1)
    triangle = triangle_of(torch.cat([top, damping * eye]))
    top, right = triangle[:n, :n], -triangle[:n, n:]
    step: Tensor = torch.linalg.solve_triangular(top, right, upper=True)[:, 0]
    return step


class Step(NamedTuple):
    scaled: Tensor  # in the units of the model
    length: Tensor  # of the step, in units of its effect on the residuals

    def predicted(self, model: Model) -> Tensor:
        """The part of the squared residual that the model says the step takes away."""
        change = model.R @ self.scaled
        return -torch.dot(2 * model.c + change, change)


def _step_of(model: Model, scaled: Tensor) -> Step:
    return Step(scaled, norm(scaled) * model.length)


class GaussNewton:
    """The whole step, always.

    It is damped as much as rounding would damp it: where the Jacobian has not full rank, it is the
    shortest.
    """

    always = True

    def start(self, x: Tensor) -> Carry:
        return ()

    def step(self, model: Model, state: Carry, eps: float) -> Step:
        return _step_of(model, _damped_step(model, eps**0.5))

    def adapt(self, state: Carry, step: Step, ratio: Tensor) -> Carry:
        return ()


class LevenbergMarquardt:
    """Damped steps. The damping follows the quality of the model (Nielsen 1999)."""

    always = False

    def start(self, x: Tensor) -> Carry:
        return x.new_full((), 1e-3), x.new_full((), 2.0)

    def step(self, model: Model, state: Carry, eps: float) -> Step:
        return _step_of(model, _damped_step(model, state[0].clamp(min=eps).sqrt()))

    def adapt(self, state: Carry, step: Step, ratio: Tensor) -> Carry:
        damping, growth = state
        is_good = ratio > _ACCEPTED
        factor = torch.clamp(1 - (2 * ratio - 1) ** 3, min=1 / 3)
        damping = damping * torch.where(is_good, factor, growth)
        return damping, torch.where(is_good, 2.0, 2 * growth)


class Dogleg:
    """Powell's path in a trust region: along the gradient, then to the Gauss-Newton step."""

    always = False

    def start(self, x: Tensor) -> Carry:
        return (x.new_full((), torch.inf),)

    def step(self, model: Model, state: Carry, eps: float) -> Step:
        radius = state[0] / _positive(model.length)
        newton = _damped_step(model, eps**0.5)
        gradient = model.R.mT @ model.c
        length = norm(gradient)
        along = ratio_or_zero(gradient, length)
        bend = norm(model.R @ along)
        cauchy = ratio_or_zero(length, bend * bend)
        steepest = -cauchy * along
        # From the gradient's minimum towards newton, up to the radius.
        towards = newton - steepest
        a = torch.dot(towards, towards)
        b = torch.dot(steepest, towards)
        room = radius * radius - cauchy * cauchy
        root = (b * b + a * room).clamp(min=0).sqrt()
        part = torch.where(b > 0, ratio_or_zero(room, b + root), ratio_or_zero(root - b, a))
        path = steepest + part * towards
        step = torch.where(cauchy >= radius, -radius * along, path)
        step = torch.where(norm(newton) <= radius, newton, step)
        return _step_of(model, step)

    def adapt(self, state: Carry, step: Step, ratio: Tensor) -> Carry:
        radius = state[0]
        smaller = 0.25 * step.length
        larger = torch.maximum(radius, 2 * step.length)
        radius = torch.where(ratio > 0.75, larger, radius)
        return (torch.where(ratio < 0.25, smaller, radius),)


Method = GaussNewton | LevenbergMarquardt | Dogleg

METHODS: dict[str, Method] = {
    "lm": LevenbergMarquardt(),
    "dogleg": Dogleg(),
    "gauss_newton": GaussNewton(),
}

# The part of the predicted decrease above which a step is taken.
_ACCEPTED = 1e-4


def least_squares(
    f: OnVector,
    x: Tensor,
    method: Method,
    measure: Callable[[Model, Tensor], Tensor],
    tolerance: float,
    eps: float,
    limit: int,
) -> Outcome:
    """Minimizes |f(x)|^2 by steps on linear models of f, until the measure is small."""
    model = linearize(f, x, torch.zeros_like(x))
    state = method.start(x)
    state_size = len(state)

    def body(i: Any, carry: Carry) -> Carry:
        x, _, _, model, state = _unpack(carry, state_size)
        step = method.step(model, state, eps)
        moved = x + step.scaled * (model.length / _positive(model.widths))
        new = linearize(f, moved, model.widths)
        ratio_of_lengths = ratio_or_zero(new.length, model.length)
        actual = (1 - ratio_of_lengths) * (1 + ratio_of_lengths)
        # Where rounding hides the decrease, the model is believed.
        predicted = step.predicted(model)
        is_hidden = (predicted <= 16 * eps) & (actual.abs() <= 16 * eps)
        ratio = torch.where(is_hidden, 1.0, actual / predicted)
        is_finite = moved.isfinite().all() & new.R.isfinite().all() & new.length.isfinite()
        ratio = torch.where(is_finite, ratio, -1.0)
        state = method.adapt(state, step, ratio)
        # Steps that no longer change x and were refused: nothing better is to be found.
        size = norm(model.widths * x)
        if method.always:
            taken = torch.ones_like(is_finite)
            stopped = torch.zeros_like(taken)
        else:
            taken = ratio > _ACCEPTED
            stopped = ~taken & (step.length <= 0.1 * eps * size)
        x, *parts = select(taken, (moved, *new), (x, *model))
        return (x, measure(Model(*parts), x), stopped, *parts, *state)

    def goes_on(carry: Carry) -> Tensor:
        return (carry[1] > tolerance) & ~carry[2]

    first = measure(model, x)
    stopped = torch.zeros_like(first, dtype=torch.bool)
    last, iterations = count_iterations(goes_on, body, (x, first, stopped, *model, *state), limit)
    return Outcome(last[0], iterations, last[1])


def _unpack(carry: Carry, state_size: int) -> tuple[Tensor, Tensor, Tensor, Model, Carry]:
    rest = carry[3:]
    count = len(rest) - state_size
    return carry[0], carry[1], carry[2], Model(*rest[:count]), rest[count:]
