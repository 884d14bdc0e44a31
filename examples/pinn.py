"""A physics-informed network: solving the heat equation by differentiating a network.

A rod of length 1 has the temperature sin(pi x) at first and is kept at 0 at both ends. Heat
spreads, ``u_t = k u_xx``, and the temperature is ``exp(-pi^2 k t) sin(pi x)``.

The network is a guess at u(t, x). Its error is measured at 100 points inside, as the residual
``u_t - k u_xx``, and at 120 on the border, where u is given. Training makes both small. The
residual contains a grad and a grad of a grad by the inputs, vmap computes it at all points at once,
and one more grad around all of it, by the parameters, trains the network.

Three figures are reproduced, in float64:

- The derivatives of the solution itself, by grad and hessian, leave a residual of 0 (within
  1e-13): what is minimized is the heat equation.
- The network's relative L2 error on a grid is 0 within 6.7e-4, which is what Raissi et al.
  report for Burgers' equation (their appendix A).
- At the rod's middle it cools by exp(-pi^2 k) = 0.3727 in a unit of time (within 0.001).

Source: Raissi, Perdikaris and Karniadakis, "Physics-informed neural networks" (2019); the
    solution by separation of variables, as in Evans, "Partial Differential Equations" (2010),
    section 4.1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from examples.figures import check
from torchlayers import functional_call, grad, grad_and_value, hessian, vmap

Parameters = dict[str, Tensor]
Points = tuple[Tensor, Tensor]  # t and x
Field = Callable[[Tensor, Tensor], Tensor]  # the temperature at one t and x

K = 0.1
HIDDEN = 20
INSIDE = 100
A_SIDE = 40
BORDER_WEIGHT = 10.0
ITERATIONS = 500

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "residual of the solution": (0.0, 1e-13),
    "relative L2 error of the network": (0.0, 6.7e-4),
    "cooling at the middle": (math.exp(-(math.pi**2) * K), 1e-3),
}


def solution(t: Tensor, x: Tensor) -> Tensor:
    return torch.exp(-(math.pi**2) * K * t) * torch.sin(math.pi * x)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
    ).to(torch.float64)


def field(params: Parameters, model: nn.Module) -> Field:
    """The network's guess, with t and x scaled to [-1, 1]."""

    def guess(t: Tensor, x: Tensor) -> Tensor:
        scaled = 2 * torch.stack([t, x]) - 1
        return functional_call(model, params, (scaled,)).squeeze(0)

    return guess


def residual(u: Field, t: Tensor, x: Tensor) -> Tensor:
    """The residual of the heat equation for u at one point."""
    u_t = grad(u, argnums=0)
    u_xx = grad(grad(u, argnums=1), argnums=1)
    return u_t(t, x) - K * u_xx(t, x)


def residual_by_hessian(u: Field, t: Tensor, x: Tensor) -> Tensor:
    return grad(u, argnums=0)(t, x) - K * hessian(u, argnums=1)(t, x)


def inside() -> Points:
    points = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(INSIDE).double()
    return points[:, 0], points[:, 1]


def border() -> Points:
    """Points at the initial time, and at the rod's two ends."""
    side = torch.linspace(0, 1, A_SIDE, dtype=torch.float64)
    zeros, ones = torch.zeros_like(side), torch.ones_like(side)
    return torch.cat([zeros, side, side]), torch.cat([side, zeros, ones])


def grid() -> Points:
    side = torch.linspace(0, 1, 101, dtype=torch.float64)
    t, x = torch.meshgrid(side, side, indexing="ij")
    return t.flatten(), x.flatten()


def mean_squares(
    params: Parameters, model: nn.Module, points: Points, border: Points, given: Tensor
) -> Tensor:
    """The weighted sum of mean squared residuals and errors, which training minimizes."""
    u = field(params, model)
    residuals = vmap(lambda t, x: residual(u, t, x))(*points)
    errors = vmap(u)(*border) - given
    return residuals.square().mean() + BORDER_WEIGHT * errors.square().mean()


def fit(model: nn.Module) -> Parameters:
    """Minimizes by L-BFGS, as Raissi et al. do."""
    params = {name: param.detach() for name, param in model.named_parameters()}
    data = inside(), border(), solution(*border())
    optimizer = torch.optim.LBFGS(
        params.values(),
        max_iter=ITERATIONS,
        tolerance_grad=0,
        tolerance_change=0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        gradients, value = grad_and_value(mean_squares)(params, model, *data)
        for name, param in params.items():
            param.grad = gradients[name]
        return value

    optimizer.step(closure)
    return params


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(0)
    model = network()
    u = field(fit(model), model)

    exact, guess = solution(*grid()), vmap(u)(*grid())
    of_solution = [
        vmap(lambda t, x, by=by: by(solution, t, x))(*grid())
        for by in (residual, residual_by_hessian)
    ]
    middle = torch.tensor(0.5, dtype=torch.float64)
    figures = {
        "residual of the solution": torch.stack(of_solution).abs().max().item(),
        "relative L2 error of the network": ((guess - exact).norm() / exact.norm()).item(),
        "cooling at the middle": (u(2 * middle, middle) / u(0 * middle, middle)).item(),
    }
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
