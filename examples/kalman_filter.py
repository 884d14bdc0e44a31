"""A Kalman filter in logarithmic depth, with its steps combined by an associative function.

A Kalman filter goes from one measurement to the next, which is a scan. Särkkä and García-Fernández
represent steps by elements of five tensors, such that combining the elements of two successive
steps gives the element for both: associative_scan then filters n measurements in about 2 log2(n)
calls on many pairs at once. vmap filters several tracks, and grad gives the likelihood's gradient
by the noise.

The tracked object has a position and a speed, and is accelerated at random; its position is
measured. Five figures are reproduced, in float64:

- Means and covariances of the two filters differ by 0 within 1e-9 (two figures).
- The gradients of the log-likelihood by the size of the acceleration also differ by 0, within a
  relative 1e-8.
- Far from the start the filter's gains are the alpha and beta (two figures) of Kalata's tracking
  index in closed form, to 1e-9.

Source: Särkkä and García-Fernández, "Temporal parallelization of Bayesian smoothers" (2021),
    section III; Kalata, "The tracking index" (1984).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.figures import check
from examples.pictures import draw_if_asked
from torchlayers import associative_scan, grad, scan, vmap

TRACKS, STEPS = 4, 500
PUSH, NOISE = 0.3, 2.0

INDEX = PUSH / NOISE  # for a time step of 1
ROOT = (4 + INDEX - math.sqrt(8 * INDEX + INDEX**2)) / 4
ALPHA = 1 - ROOT**2
BETA = 2 * (2 - ALPHA) - 4 * math.sqrt(1 - ALPHA)

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "difference of means": (0.0, 1e-9),
    "difference of covariances": (0.0, 1e-9),
    "difference of gradients": (0.0, 1e-8),
    "alpha": (ALPHA, 1e-9),
    "beta": (BETA, 1e-9),
}


class Element(NamedTuple):
    """Some steps: y after them is Gaussian given x before them, of mean A x + b and covariance C;
    eta and J are the information about x in their measurements."""

    A: Tensor
    b: Tensor
    C: Tensor
    eta: Tensor
    J: Tensor


MOVE = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
SEEN = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)
DIRECTION = torch.tensor([0.5, 1.0], dtype=torch.float64)
FIRST_MEAN, FIRST_COVARIANCE = torch.zeros(2, dtype=torch.float64), 100 * EYE


def pushed(size: Tensor) -> Tensor:
    """The covariance of a random acceleration, constant for one step."""
    return size**2 * torch.outer(DIRECTION, DIRECTION)


def update(mean: Tensor, covariance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A prediction corrected by a measurement, and the gain."""
    spread = SEEN @ covariance @ SEEN.T + NOISE**2
    gain = covariance @ SEEN.T / spread
    return mean + gain[:, 0] * (y - (SEEN @ mean)[0]), covariance - gain @ SEEN @ covariance, gain


def step_by_step(size: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances after each measurement, by the sequential filter."""

    def step(state: Any, y: Tensor) -> Any:
        mean, covariance = state
        after = update(MOVE @ mean, MOVE @ covariance @ MOVE.T + pushed(size), y)[:2]
        return after, after

    return scan(step, (FIRST_MEAN, FIRST_COVARIANCE), ys)[1]


def element_of(size: Tensor, y: Tensor) -> Element:
    """The element of one step."""
    push = pushed(size)
    spread = SEEN @ push @ SEEN.T + NOISE**2
    gain = push @ SEEN.T / spread
    left = EYE - gain @ SEEN
    told = MOVE.T @ SEEN.T / spread
    return Element(left @ MOVE, gain[:, 0] * y, left @ push, told[:, 0] * y, told @ SEEN @ MOVE)


def join(first: Element, then: Element) -> Element:
    """The element of two successive groups of steps."""
    between = torch.linalg.inv(EYE + first.C @ then.J)
    forth, back = then.A @ between, first.A.T @ between.T
    return Element(
        forth @ first.A,
        forth @ (first.b + first.C @ then.eta) + then.b,
        forth @ first.C @ then.A.T + then.C,
        back @ (then.eta - then.J @ first.b) + first.eta,
        back @ then.J @ first.A + first.J,
    )


def all_at_once(size: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """The same, in logarithmic depth."""
    elements = vmap(element_of, in_dims=(None, 0))(size, ys)
    predicted = MOVE @ FIRST_MEAN, MOVE @ FIRST_COVARIANCE @ MOVE.T + pushed(size)
    mean, covariance, _ = update(*predicted, ys[0])
    zero = torch.zeros_like(EYE)
    known = Element(zero, mean, covariance, zero[0], zero)  # the first step, from the known start
    joined = [torch.cat([one[None], rest[1:]]) for one, rest in zip(known, elements, strict=True)]
    found = associative_scan(join, Element(*joined))
    return found.b, found.C


def log_likelihood(size: Tensor, ys: Tensor, filtered: Any) -> Tensor:
    means, covariances = filtered(size, ys)
    means = torch.cat([FIRST_MEAN[None], means[:-1]])
    covariances = torch.cat([FIRST_COVARIANCE[None], covariances[:-1]])

    def of_one(mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        spread = (SEEN @ (MOVE @ covariance @ MOVE.T + pushed(size)) @ SEEN.T + NOISE**2)[0, 0]
        error = y - (SEEN @ MOVE @ mean)[0]
        return -(error**2 / spread + spread.log() + math.log(2 * math.pi)) / 2

    return vmap(of_one)(means, covariances, ys).sum()


def measured() -> tuple[Tensor, Tensor]:
    """Tracks, and noisy measurements of them."""
    generator = torch.Generator().manual_seed(0)
    pushes = torch.randn(TRACKS, STEPS, dtype=torch.float64, generator=generator)
    noise = torch.randn(TRACKS, STEPS, dtype=torch.float64, generator=generator)

    def move(state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        state = MOVE @ state + PUSH * push * DIRECTION
        return state, state[0]

    places = vmap(lambda pushes: scan(move, FIRST_MEAN, pushes)[1])(pushes)
    return places, places + NOISE * noise


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    places, ys = measured()
    size = torch.tensor(PUSH, dtype=torch.float64)
    slow, fast = (vmap(f, in_dims=(None, 0))(size, ys) for f in (step_by_step, all_at_once))
    gradients = [
        vmap(grad(log_likelihood), in_dims=(None, 0, None))(size, ys, f)
        for f in (step_by_step, all_at_once)
    ]
    last = MOVE @ fast[1][0, -1] @ MOVE.T + pushed(size)
    gain = update(FIRST_MEAN, last, ys[0, 0])[2][:, 0]
    figures = {
        "difference of means": largest(slow[0] - fast[0]),
        "difference of covariances": largest(slow[1] - fast[1]),
        "difference of gradients": largest(gradients[1] / gradients[0] - 1),
        "alpha": gain[0].item(),
        "beta": gain[1].item(),
    }
    check(figures, EXPECTED)

    def draw(figure: Any) -> None:
        track = figure.subplots()
        shown = slice(0, 120)
        spread = fast[1][0, shown, 0, 0].sqrt()
        times, mean = torch.arange(120), fast[0][0, shown, 0]
        track.plot(times, ys[0, shown], ".", color="0.6", label="measured")
        track.plot(times, places[0, shown], color="black", linewidth=1, label="true")
        track.plot(times, mean, label="filtered")
        track.fill_between(times, mean - 2 * spread, mean + 2 * spread, alpha=0.2)
        track.set(xlabel="step", ylabel="position")
        track.legend()

    draw_if_asked("A Kalman filter by associative_scan.", draw)
    return figures


if __name__ == "__main__":
    main()
