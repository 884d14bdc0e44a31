"""Particle filters for many series at once, each of which draws with its own key.

A particle filter tracks a hidden state by a cloud of samples: it moves them, weights them by the
observation, and resamples them by their weights. Here it is written for one series, with a key for
its random numbers, and vmap runs it on all series. Two models are tracked.

In the first, an autoregression observed with noise, everything is Gaussian, and Kalman's filter
gives the exact answer. Three figures are reproduced:

- The mean over series of the log-likelihood's error, per observation, is 0 (within 0.01, with 2048
  particles).
- The error of the state's mean falls with the square root of the particles: exponent -0.5 (within
  0.08) from 64 to 4096.
- The filter of a single series gives the same results as in the batch, its resampling too: 0 of
  the particles' ancestors differ, whatever the size of the batch or of its chunks.

The second is Gordon, Salmond and Smith's, a standard test: the observation squares the state, so
its sign is lost, and there are two clouds. No filter is exact there, but a correct one estimates
its own uncertainty:

- The interval between the particles' quantiles at 0.05 and 0.95 contains the state 90 times in a
  hundred (within 1.5, over 400 series of 100 steps).

``python -m examples.particle_filter --picture PATH`` draws the second: the particles of one series
and the state that they track.

Source: Gordon, Salmond and Smith, "Novel approach to nonlinear/non-Gaussian Bayesian state
    estimation" (1993); Kalman, "A new approach to linear filtering and prediction problems" (1960).
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.figures import check
from torchlayers import random, vmap

SERIES, STEPS = 100, 50
PARTICLES = [64, 256, 1024, 4096]
SPREAD_SERIES, SPREAD_STEPS, SPREAD_PARTICLES = 400, 100, 1000

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "log-likelihood per observation, less Kalman's": (0.0, 0.01),
    "error of the mean, exponent of the particles": (-0.5, 0.08),
    "ancestors that differ alone and in a batch": (0.0, 0.0),
    "states in the interval of 0.9": (0.9, 0.015),
}


class Model(NamedTuple):
    """How a state moves, and how it is observed: both with normal noise."""

    start: float  # the standard deviation of the first state, around zero
    move: Callable[[Tensor, int], Tensor]
    move_noise: float
    see: Callable[[Tensor], Tensor]
    see_noise: float


DECAY = 0.9
LINEAR = Model(1.0, lambda x, t: DECAY * x, 1.0, lambda x: x, 0.7)
SQUARED = Model(
    math.sqrt(5.0),
    lambda x, t: x / 2 + 25 * x / (1 + x**2) + 8 * math.cos(1.2 * t),
    math.sqrt(10.0),
    lambda x: x**2 / 20,
    1.0,
)


class Filtered(NamedTuple):
    log_likelihood: Tensor
    means: Tensor  # (steps)
    particles: Tensor  # (steps, particles), before they are resampled
    weights: Tensor  # (steps, particles)
    ancestors: Tensor  # (steps, particles)


def simulate(key: Tensor, model: Model, steps: int) -> tuple[Tensor, Tensor]:
    """States and observations of one series."""
    for_start, for_moves, for_sight = random.split(key, 3)
    moves = model.move_noise * random.normal(for_moves, (steps,))
    x = model.start * random.normal(for_start)
    states = [x]
    for t in range(1, steps):
        x = model.move(x, t) + moves[t]
        states.append(x)
    path = torch.stack(states)
    return path, model.see(path) + model.see_noise * random.normal(for_sight, (steps,))


def resample(key: Tensor, weights: Tensor) -> Tensor:
    """Indices of the particles that survive: systematic resampling, with one uniform number."""
    count = weights.shape[0]
    places = (torch.arange(count) + random.uniform(key)) / count
    return torch.searchsorted(weights.cumsum(0), places).clamp(max=count - 1)


def follow(key: Tensor, seen: Tensor, model: Model, count: int) -> Filtered:
    """The filter of one series."""
    for_start, for_steps = random.split(key)
    x = model.start * random.normal(for_start, (count,))
    total = torch.zeros(())
    steps = []
    for t in range(seen.shape[0]):
        for_move, for_choice = random.split(random.fold_in(for_steps, t))
        if t > 0:
            x = model.move(x, t) + model.move_noise * random.normal(for_move, (count,))
        error = (seen[t] - model.see(x)) / model.see_noise
        log_weights = -(error**2) / 2 - math.log(model.see_noise * math.sqrt(2 * math.pi))
        total = total + log_weights.logsumexp(0) - math.log(count)
        weights = log_weights.softmax(0)
        ancestors = resample(for_choice, weights)
        steps.append(((weights * x).sum(), x, weights, ancestors))
        x = x[ancestors]
    return Filtered(total, *(torch.stack(each) for each in zip(*steps, strict=True)))


def kalman(seen: Tensor, model: Model) -> tuple[Tensor, Tensor]:
    """The exact log-likelihood and means of one series of the linear model."""
    mean, variance, total = torch.zeros(()), torch.tensor(model.start**2), torch.zeros(())
    means = []
    for t in range(seen.shape[0]):
        if t > 0:
            mean, variance = DECAY * mean, DECAY**2 * variance + model.move_noise**2
        spread = variance + model.see_noise**2
        error = seen[t] - mean
        total = total - (error**2 / spread + torch.log(2 * math.pi * spread)) / 2
        gain = variance / spread
        mean, variance = mean + gain * error, (1 - gain) * variance
        means.append(mean)
    return total, torch.stack(means)


def linear(key: Tensor) -> dict[str, float]:
    for_series, for_filters = random.split(key)
    _, seen = vmap(lambda key: simulate(key, LINEAR, STEPS))(random.split(for_series, SERIES))
    exact, exact_means = vmap(lambda seen: kalman(seen, LINEAR))(seen)
    keys = random.split(for_filters, SERIES)

    def filtered(count: int, **chunks: Any) -> Filtered:
        of_one = vmap(lambda key, seen: follow(key, seen, LINEAR, count), **chunks)
        return Filtered(*of_one(keys, seen))

    errors = {}
    for count in PARTICLES:
        errors[count] = (filtered(count).means - exact_means).square().mean().sqrt().item()
        print(f"{count} particles: the mean is off by {errors[count]:.4f}")
    found = filtered(2048)
    alone = follow(keys[7], seen[7], LINEAR, 2048)
    in_chunks = filtered(2048, chunk_size=33)
    differing = (alone.ancestors != found.ancestors[7]).sum()
    differing = differing + (in_chunks.ancestors != found.ancestors).sum()
    first, last = PARTICLES[0], PARTICLES[-1]
    return {
        "log-likelihood per observation, less Kalman's": (
            (found.log_likelihood - exact).mean().item() / STEPS
        ),
        "error of the mean, exponent of the particles": (
            math.log(errors[last] / errors[first]) / math.log(last / first)
        ),
        "ancestors that differ alone and in a batch": differing.item(),
    }


def squared(key: Tensor) -> tuple[dict[str, float], Tensor, Filtered]:
    """The figure, the states, and the results of the filters."""
    for_series, for_filters = random.split(key)
    states, seen = vmap(lambda key: simulate(key, SQUARED, SPREAD_STEPS))(
        random.split(for_series, SPREAD_SERIES)
    )

    def of_one(key: Tensor, seen: Tensor) -> Filtered:
        return follow(key, seen, SQUARED, SPREAD_PARTICLES)

    found = Filtered(*vmap(of_one, chunk_size=100)(random.split(for_filters, SPREAD_SERIES), seen))
    order = found.particles.argsort(-1)
    below = found.weights.gather(-1, order).cumsum(-1)
    ordered = found.particles.gather(-1, order)
    low, high = (
        ordered.gather(-1, (below < level).sum(-1, keepdim=True)).squeeze(-1)
        for level in (0.05, 0.95)
    )
    inside = ((low <= states) & (states <= high)).double().mean().item()
    return {"states in the interval of 0.9": inside}, states, found


def draw(path: str, states: Tensor, found: Filtered) -> None:
    """The weighted particles of the first series as a map, and its states as dots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    edges = torch.linspace(-25, 25, 101)
    density = torch.stack(
        [
            torch.histogram(x, edges, weight=weights).hist
            for x, weights in zip(found.particles[0], found.weights[0], strict=True)
        ],
        dim=1,
    )
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    extent = (-0.5, SPREAD_STEPS - 0.5, -25, 25)
    axes.imshow(
        density.sqrt(), origin="lower", extent=extent, aspect="auto", cmap="Blues", vmax=0.7
    )
    axes.plot(states[0], ".", color="tab:red", markersize=4, label="state")
    axes.set_xlabel("step")
    axes.set_ylabel("state, and the particles' weight")
    axes.legend(loc="upper right")
    figure.savefig(path, dpi=100)


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", metavar="PATH", help="where to draw the second model's")
    picture = parser.parse_args().picture
    torch.set_num_threads(1)
    for_linear, for_squared = random.split(random.key(0))
    figures = linear(for_linear)
    inside, states, found = squared(for_squared)
    figures |= inside
    check(figures, EXPECTED)
    if picture:
        draw(picture, states, found)
    return figures


if __name__ == "__main__":
    main()
