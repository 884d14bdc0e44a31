"""An adaptive solver of differential equations, with different steps for each sample.

Dormand and Prince's method takes a step of order 5, estimates its error by one of order 4 from the
same stages, and uses that to choose the next step. For one orbit it is written as a while_loop: a
cond decides whether a step is accepted or repeated with a smaller size. vmap runs it for a batch of
orbits around a sun, of which the most eccentric needs several times the steps of the round one, and
grad goes through all of them.

An orbit of semi-axis 1 takes 2 pi, whatever its eccentricity e; it starts at 1 - e with speed
sqrt((1 + e) / (1 - e)). Four figures are reproduced, in float64:

- After its period each is where it started: 0 within 1e-5.
- So the end depends on e as the start does: d(1 - e)/de = -1 within 1e-4, by grad through all
  steps.
- Angular momentum sqrt(1 - e^2) is conserved to 1e-8.
- If scipy is installed, its solver of the same method agrees to 1e-6 after a quarter of a period.

Source: Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980); the choice of steps
    as in Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I" (1993), II.4.
"""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from examples.figures import check
from examples.pictures import draw_if_asked
from torchlayers import cond, grad, vmap, while_loop

Field = Callable[[Tensor], Tensor]

TOLERANCE = 1e-9
SAFETY, SLOWEST, FASTEST = 0.9, 0.2, 5.0
PERIOD = 2 * math.pi

# Butcher's tableau: the weights of the earlier stages in each stage, and those of the error.
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "distance from the start after a period": (0.0, 1e-5),
    "the end's derivative by e": (-1.0, 1e-4),
    "change of angular momentum": (0.0, 1e-8),
}
IF_SCIPY = {"difference from scipy": (0.0, 1e-6)}


def stages(field: Field, y: Tensor, slope: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The end of a step, the slope there, and an estimate of the error."""
    slopes = [slope]
    for weights in STAGES:
        at = y + h * sum(w * k for w, k in zip(weights, slopes, strict=False) if w)
        slopes.append(field(at))
    error = h * sum(w * k for w, k in zip(ERROR, slopes, strict=True) if w)
    return at, slopes[-1], error


def solve(field: Field, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """y at time ``end``, where y' = field(y), and the number of steps tried."""

    def goes_on(state: Any) -> Tensor:
        return state[0] < end

    def step(state: Any) -> Any:
        t, y, slope, h, count = state
        h = torch.minimum(h, end - t)
        new, new_slope, error = stages(field, y, slope, h)
        allowed = TOLERANCE * (1 + torch.maximum(y.abs(), new.abs()))
        # The step sizes are a choice, not a part of the solution: no gradient goes through them.
        size = (error / allowed).square().mean().sqrt().detach().clamp(min=1e-10)
        following = h * (SAFETY * size ** (-1 / 5)).clamp(SLOWEST, FASTEST)
        kept = cond(size <= 1, lambda: (t + h, new, new_slope), lambda: (t, y, slope))
        return *kept, following, count + 1

    zero = torch.zeros_like(end)
    first = zero, start, field(start), zero + 1e-3, torch.zeros_like(end, dtype=torch.int64)
    _, y, _, _, count = while_loop(goes_on, step, first)
    return y, count


def gravity(y: Tensor) -> Tensor:
    place, speed = y[:2], y[2:]
    return torch.cat([speed, -place / place.norm() ** 3])


def at_start(e: Tensor) -> Tensor:
    zero = torch.zeros_like(e)
    return torch.stack([1 - e, zero, zero, ((1 + e) / (1 - e)).sqrt()])


def orbit(e: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    return solve(gravity, at_start(e), time)


def scipys(e: Tensor, time: float) -> Tensor:
    from scipy.integrate import solve_ivp

    def field(t: float, y: Any) -> Any:
        return gravity(torch.from_numpy(y)).numpy()

    ends = [
        solve_ivp(field, (0, time), at_start(each).numpy(), rtol=TOLERANCE, atol=TOLERANCE).y[:, -1]
        for each in e
    ]
    return torch.stack([torch.from_numpy(end) for end in ends])


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    e = torch.linspace(0.0, 0.8, 9, dtype=torch.float64)
    period = torch.tensor(PERIOD, dtype=torch.float64)
    ends, count = vmap(orbit, in_dims=(0, None))(e, period)
    slopes = vmap(grad(lambda e: orbit(e, period)[0][0]))(e)
    momenta = ends[:, 0] * ends[:, 3] - ends[:, 1] * ends[:, 2]
    figures = {
        "distance from the start after a period": (ends - vmap(at_start)(e)).abs().max().item(),
        "the end's derivative by e": slopes[(slopes + 1).abs().argmax()].item(),
        "change of angular momentum": (momenta - (1 - e**2).sqrt()).abs().max().item(),
    }
    expected = dict(EXPECTED)
    if importlib.util.find_spec("scipy") is not None:
        ours = vmap(orbit, in_dims=(0, None))(e, period / 4)[0]
        figures["difference from scipy"] = (ours - scipys(e, PERIOD / 4)).abs().max().item()
        expected |= IF_SCIPY
    check(figures, expected)
    print(f"steps tried: {', '.join(str(int(each)) for each in count)}")

    def draw(figure: Any) -> None:
        ways, steps = figure.subplots(1, 2)
        times = torch.linspace(0, PERIOD, 120, dtype=torch.float64)
        for each in e[::2]:
            way = vmap(orbit, in_dims=(None, 0))(each, times)[0]
            ways.plot(way[:, 0], way[:, 1], label=f"e = {each:.1f}")
        ways.plot(0, 0, "o", color="orange")
        ways.set(aspect="equal", title="orbits")
        ways.legend()
        steps.plot(e, count, "o-")
        steps.set(xlabel="e", ylabel="steps tried", ylim=0, title="each with its own steps")

    draw_if_asked("Orbits, each with steps of its own.", draw)
    return figures


if __name__ == "__main__":
    main()
