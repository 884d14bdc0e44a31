"""A root finder for a whole batch: Kepler's equation, with separate iterations for each orbit.

A planet's eccentric anomaly E solves ``E - e sin(E) = M``, where e is the eccentricity of its orbit
and M grows evenly with time. Newton's method finds it in three steps for a round orbit; near e = 1
it may leave the interval that is known to contain the root, and then the interval is halved. A
function for a single orbit expresses this, with a while_loop and a cond. vmap runs it for 10,000
orbits, and grad goes through the iterations, which jax.lax.while_loop does not support.

Four figures are reproduced, in float64:

- The equation is solved to 0 within 1e-14, for all orbits.
- dE/dM, by grad through the iterations, is 1 / (1 - e cos(E)), as the implicit function theorem
  says, to a relative 1e-8.
- dE/de is sin(E) / (1 - e cos(E)), likewise.
- From the point nearest to the sun to the farthest the mean of E - M is 2 e / pi: the integral of
  E dM over half an orbit is pi^2 / 2 + 2 e.

Source: Danby, "Fundamentals of Celestial Mechanics" (1992), section 6.6; Newton's method with
    bisection as in Press et al., "Numerical Recipes" (2007), section 9.4.
"""

import math
from typing import Any

import torch
from torch import Tensor

from examples.figures import check
from examples.pictures import draw_if_asked
from torchlayers import cond, grad, vmap, while_loop

TOLERANCE = 1e-15
AT_MOST = 80
SIDE = 100

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "largest residual": (0.0, 1e-14),
    "error of dE/dM": (0.0, 1e-8),
    "error of dE/de": (0.0, 1e-8),
    "mean of E - M at e = 0.5": (2 * 0.5 / math.pi, 1e-4),
}


def anomaly(m: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """E of one orbit, and the number of iterations."""

    def goes_on(state: Any) -> Tensor:
        low, high, _, step, count = state
        return (step.abs() > TOLERANCE) & (high - low > TOLERANCE) & (count < AT_MOST)

    def improve(state: Any) -> Any:
        low, high, at, _, count = state
        value = at - e * at.sin() - m
        low, high = cond(value > 0, lambda: (low, at), lambda: (at, high))
        newton = at - value / (1 - e * at.cos())
        new = cond(
            (newton >= low) & (newton <= high), lambda: newton, lambda: low + (high - low) / 2
        )
        return low, high, new, new - at, count + 1

    zero = torch.zeros_like(m)
    start = zero, zero + math.pi, m + 0 * e, zero + 1, torch.zeros_like(m, dtype=torch.int64)
    _, _, found, _, count = while_loop(goes_on, improve, start)
    return found, count


def orbits() -> tuple[Tensor, Tensor]:
    m = torch.linspace(0.01, math.pi - 0.01, SIDE, dtype=torch.float64)
    e = torch.linspace(0.0, 0.99, SIDE, dtype=torch.float64)
    ms, es = torch.meshgrid(m, e, indexing="ij")
    return ms.flatten(), es.flatten()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs() / expected.abs().clamp(min=1)).max().item()


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    m, e = orbits()
    found, count = vmap(anomaly)(m, e)
    by_m, by_e = vmap(grad(lambda m, e: anomaly(m, e)[0], argnums=(0, 1)))(m, e)

    middles = (torch.arange(1000, dtype=torch.float64) + 0.5) * math.pi / 1000
    ahead = vmap(anomaly, in_dims=(0, None))(middles, torch.tensor(0.5, dtype=torch.float64))[0]
    slope = 1 / (1 - e * found.cos())
    figures = {
        "largest residual": (found - e * found.sin() - m).abs().max().item(),
        "error of dE/dM": relative_error(by_m, slope),
        "error of dE/de": relative_error(by_e, found.sin() * slope),
        "mean of E - M at e = 0.5": (ahead - middles).mean().item(),
    }
    check(figures, EXPECTED)
    print(f"iterations: {count.min()} to {count.max()}, {count.double().mean():.1f} on average")

    def draw(figure: Any) -> None:
        solved, trips = figure.subplots(1, 2)
        for place in (0, 50, 80, 99):
            solved.plot(m.view(SIDE, SIDE)[:, place], found.view(SIDE, SIDE)[:, place],
                        label=f"e = {e[place]:.2f}")  # fmt: skip
        solved.set(xlabel="M", ylabel="E", title="Kepler's equation, solved")
        solved.legend()
        image = trips.imshow(count.view(SIDE, SIDE).T, origin="lower", aspect="auto",
                             extent=(0, math.pi, 0, 0.99))  # fmt: skip
        trips.set(xlabel="M", ylabel="e", title="iterations of each orbit")
        figure.colorbar(image)

    draw_if_asked("Kepler's equation for a batch of orbits.", draw)
    return figures


if __name__ == "__main__":
    main()
