"""Minimizers on single real vectors: bfgs, lbfgs and nonlinear cg, with one line search.

NOTE [One loop]
Each iteration is one value and gradient of the function, at the next point of a line search. If the
point will do, the same iteration starts the next line search. So there is a single loop, in which
each sample of a batch is where it is, and no sample waits for the line search of another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry, magnitude, norm, ratio_or_zero, select
from torchlayers.implicit.solution import Outcome, count_iterations
from torchlayers.transforms.grad_and_value import grad_and_value

OnVector = Callable[[Tensor], Tensor]


class Move(NamedTuple):
    """The step from one point to the next, and what the gradient is there."""

    step: Tensor
    change: Tensor  # of the gradient
    gradient: Tensor  # at the new point
    direction: Tensor  # of the line search that found the step


class Method(Protocol):
    """A choice of directions.

    Attributes:
        curvature: a line search ends where the slope is at most this part of what it was.
    """

    curvature: float

    def start(self, gradient: Tensor, step: Tensor) -> Carry:
        """Returns the memory, with which the first direction is -step * gradient."""

    def remember(self, memory: Carry, move: Move) -> Carry:
        """Returns the memory after a move."""

    def direction(self, memory: Carry, move: Move) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the next direction, how far to go along it first, and the length of what would be
        Newton's step, from which convergence is seen."""


class BFGS:
    """Keeps an approximation of the inverse Hessian, n x n."""

    curvature = 0.9

    def start(self, gradient: Tensor, step: Tensor) -> Carry:
        eye = torch.eye(gradient.shape[0], dtype=gradient.dtype, device=gradient.device)
        return step * eye, torch.ones((), dtype=torch.bool, device=gradient.device)

    def remember(self, memory: Carry, move: Move) -> Carry:
        inverse, is_first = memory
        s, y = move.step, move.change
        sy = torch.dot(s, y)
        eye = torch.eye(s.shape[0], dtype=s.dtype, device=s.device)
        # The first move tells the scale of the curvature (Nocedal and Wright, 6.20).
        inverse = torch.where(is_first, ratio_or_zero(sy, torch.dot(y, y)) * eye, inverse)
        hy = inverse @ y
        u = ratio_or_zero(s, sy)
        v = 0.5 * (1 + ratio_or_zero(torch.dot(y, hy), sy)) * u - ratio_or_zero(hy, sy)
        half = torch.outer(s, v)
        return inverse + half + half.mT, torch.zeros_like(is_first)

    def direction(self, memory: Carry, move: Move) -> tuple[Tensor, Tensor, Tensor]:
        direction = -(memory[0] @ move.gradient)
        return direction, move.gradient.new_ones(()), norm(direction)


class LBFGS:
    """Keeps the last steps and changes of the gradient, as rows, the latest last.

    The direction is the compact form of the product with the inverse Hessian (Byrd, Nocedal and
    Schnabel 1994): products of matrices, where the usual two loops have a vector at a time.
    """

    curvature = 0.9

    def __init__(self, history: int) -> None:
        self.history = history

    def start(self, gradient: Tensor, step: Tensor) -> Carry:
        rows = gradient.new_zeros((self.history, gradient.shape[0]))
        products = gradient.new_zeros((self.history, self.history))
        return rows, rows, products, products, step

    def remember(self, memory: Carry, move: Move) -> Carry:
        S, Y, SY, YY, _ = memory
        s, y = move.step, move.change
        S = torch.cat([S[1:], s[None]])
        Y = torch.cat([Y[1:], y[None]])
        to_s, to_y = S @ y, Y @ y
        # R of the compact form: s_i . y_j for i <= j.
        SY = _shifted(SY, to_s, torch.zeros_like(to_s))
        YY = _shifted(YY, to_y, to_y)
        return S, Y, SY, YY, ratio_or_zero(to_s[-1], to_y[-1])

    def direction(self, memory: Carry, move: Move) -> tuple[Tensor, Tensor, Tensor]:
        S, Y, SY, YY, scale = memory
        g = move.gradient
        diagonal = SY.diagonal()
        R = SY + torch.diag_embed((diagonal == 0).to(g.dtype))  # rows that are not used yet
        of_s, of_y = S @ g, Y @ g
        a = torch.linalg.solve_triangular(R, of_s[:, None], upper=True)[:, 0]
        inner = diagonal * a + scale * (YY @ a - of_y)
        u = torch.linalg.solve_triangular(R.mT, inner[:, None], upper=False)[:, 0]
        direction = -(scale * (g - a @ Y) + u @ S)
        return direction, move.gradient.new_ones(()), norm(direction)


class NonlinearCG:
    """Directions of Hager and Zhang (2005), with the lower bound of Dai and Kou (2013)."""

    curvature = 0.1

    def start(self, gradient: Tensor, step: Tensor) -> Carry:
        return (step,)

    def remember(self, memory: Carry, move: Move) -> Carry:
        # The length of Newton's step is estimated by the largest of Barzilai and Borwein's steps,
        # because a single one sees no more than one of the curvatures.
        step = ratio_or_zero(torch.dot(move.step, move.step), torch.dot(move.step, move.change))
        return (torch.maximum(step, 0.95 * memory[0]),)

    def direction(self, memory: Carry, move: Move) -> tuple[Tensor, Tensor, Tensor]:
        g, y, p = move.gradient, move.change, move.direction
        py = torch.dot(p, y)
        pg = torch.dot(p, g)
        beta = torch.dot(y, g) - 2 * torch.dot(y, y) * ratio_or_zero(pg, py)
        beta = ratio_or_zero(beta, py)
        beta = torch.maximum(beta, 0.4 * ratio_or_zero(pg, torch.dot(p, p)))
        direction = beta * p - g
        # To the minimum of a quadratic function with the curvature of the last step.
        bend = torch.dot(move.step, y) / torch.dot(move.step, move.step)
        first = ratio_or_zero(-torch.dot(direction, g), bend * torch.dot(direction, direction))
        return direction, first, memory[0] * norm(g)


def minimize(
    f: OnVector, x: Tensor, method: Method, tolerance: float, eps: float, limit: int
) -> Outcome:
    """Minimizes f by line searches to the strong conditions of Wolfe.

    A point where f is not finite is too far. An interval is divided at the minimum of a cubic or
    quadratic through its ends, kept away from both (Nocedal and Wright, 3.5).
    """
    derivative = grad_and_value(f)
    g, f0 = derivative(x)
    scale = magnitude(g)  # squares of gradients neither overflow nor underflow

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        g, value = derivative(x)
        return g / scale, value / scale

    g, f0 = g / scale, f0 / scale
    step = ratio_or_zero(torch.ones_like(f0), norm(g))
    p = -step * g
    size = norm(p) / (1 + norm(x))
    zero, one = torch.zeros_like(size), torch.ones_like(size)
    search = _search(one, f0, torch.dot(g, p))
    flags = torch.zeros_like(size, dtype=torch.bool), torch.ones_like(size, dtype=torch.bool)
    memory = method.start(g, step)
    count = len(memory)

    def body(i: Any, carry: Carry) -> Carry:
        x, g, p, f0, slope, _, _, is_fresh = carry[:8]
        interval, memory = _Interval(*carry[8:-count]), carry[-count:]
        t = interval.t
        moved = x + t * p
        at, value = scaled(moved)
        slope_at = torch.dot(at, p)
        # Close to the minimum the values of f no longer tell, and slopes decide alone.
        noise = 4 * eps * f0.abs()
        least = 1e-4 * t * slope
        lower = value <= f0 + torch.where(-least > noise, least, noise)
        lower = lower & (slope_at <= -method.curvature * slope)
        lower = lower & at.isfinite().all()
        accepted = lower & (slope_at >= method.curvature * slope)
        narrowed = interval.narrowed(lower, value, slope_at)
        # What is left of the interval is too short to change x.
        is_short = (narrowed.t * p).abs().amax() <= 0.1 * eps * (eps + x.abs().amax())
        failed = ~accepted & (is_short | (narrowed.trials > 40))
        move = Move(t * p, at - g, at, p)
        remembered = method.remember(memory, move)
        q, first, length = method.direction(remembered, move)
        next_slope = torch.dot(at, q)
        is_descent = next_slope < 0
        # After a failed line search or an ascending direction: steepest descent once more.
        steepest = ratio_or_zero(torch.dot(move.step, move.step).sqrt(), norm(at))
        steepest = torch.where(accepted, steepest, ratio_or_zero(one, norm(g)))
        restarts = (accepted & ~is_descent) | (failed & ~is_fresh)
        gradient = torch.where(accepted, at, g)
        again = method.start(gradient, steepest)
        new_memory = select(accepted, remembered, memory)
        new_memory = select(restarts, again, new_memory)
        is_new = accepted | restarts
        new_x = torch.where(accepted, moved, x)
        new_p = torch.where(accepted, q, p)
        new_p = torch.where(restarts, -steepest * gradient, new_p)
        new_f = torch.where(accepted, value, f0)
        new_slope = torch.where(is_new, torch.dot(gradient, new_p), slope)
        # Steepest descent at the minimum finds no lower point: the first trial tells how far it is.
        bend = slope_at - slope
        bound = t * torch.dot(p, p) * norm(g) / (bend * (1 + norm(x)))
        is_bound = is_fresh & (interval.trials == 0) & (bend > 0) & bound.isfinite()
        size = torch.where(is_bound, bound, carry[5])
        size = torch.where(accepted, length / (1 + norm(moved)), size)
        start = torch.where(accepted & is_descent, first, one)
        begun = _search(start, new_f, new_slope)
        interval = _Interval(*select(is_new, begun, narrowed))
        stopped = failed & is_fresh
        fresh = torch.where(is_new, restarts, is_fresh)
        return (
            new_x,
            gradient,
            new_p,
            new_f,
            new_slope,
            size,
            stopped,
            fresh,
            *interval,
            *new_memory,
        )

    def goes_on(carry: Carry) -> Tensor:
        return (carry[5] > tolerance) & ~carry[6]

    start = (x, g, p, f0, torch.dot(g, p), size + zero, *flags, *search, *memory)
    last, iterations = count_iterations(goes_on, body, start, limit)
    residual = torch.where(last[3].isfinite(), last[5], torch.nan)
    return Outcome(last[0], iterations, residual)


class _Interval(NamedTuple):
    """Where a line search is: the next point, and what is known at both ends around it."""

    t: Tensor
    low: Tensor
    high: Tensor
    f_low: Tensor
    slope_low: Tensor
    f_high: Tensor
    slope_high: Tensor
    trials: Tensor

    def narrowed(self, lower: Tensor, value: Tensor, slope: Tensor) -> "_Interval":
        """Returns the interval after a point that is too near, or else too far."""
        t, low, high, f_low, slope_low, f_high, slope_high, trials = self
        before, slope_before = low, slope_low
        low, high = torch.where(lower, t, low), torch.where(lower, high, t)
        f_low, f_high = torch.where(lower, value, f_low), torch.where(lower, f_high, value)
        slope_low = torch.where(lower, slope, slope_low)
        slope_high = torch.where(lower, slope_high, slope)
        width = high - low
        cubic = low + _minimum(width, f_low, slope_low, f_high, slope_high)
        inside = torch.where(cubic.isfinite(), cubic, low + 0.5 * width)
        inside = torch.maximum(torch.minimum(inside, high - 0.1 * width), low + 0.1 * width)
        # Beyond: where the slope would be zero, if it went on as between the last two points.
        secant = t + (t - before) * ratio_or_zero(slope, slope_before - slope)
        beyond = torch.where(secant > t, secant, torch.inf)
        beyond = torch.maximum(torch.minimum(beyond, 10 * t), 2 * t)
        t = torch.where(high.isfinite(), inside, beyond)
        return _Interval(t, low, high, f_low, slope_low, f_high, slope_high, trials + 1)


def _search(t: Tensor, value: Tensor, slope: Tensor) -> _Interval:
    zero = torch.zeros_like(t)
    infinite = torch.full_like(t, torch.inf)
    return _Interval(t, zero, infinite, value, slope, infinite, infinite, zero)


def _minimum(width: Tensor, f0: Tensor, slope0: Tensor, f1: Tensor, slope1: Tensor) -> Tensor:
    """Where the cubic with these values and slopes at both ends of an interval is least, counted
    from its start; the quadratic, if the slope at the end is not finite."""
    chord = (f1 - f0) / width
    d1 = slope0 + slope1 - 3 * chord
    d2 = (d1 * d1 - slope0 * slope1).clamp(min=0).sqrt()
    cubic = width * (1 - (slope1 + d2 - d1) / (slope1 - slope0 + 2 * d2))
    quadratic = -0.5 * slope0 * width / (chord - slope0)
    return torch.where(cubic.isfinite(), cubic, quadratic)


def _shifted(products: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """The matrix without its first row and column, with a new last column and row."""
    rest = torch.cat([products[1:, 1:], row[None, :-1]])
    return torch.cat([rest, column[:, None]], 1)
