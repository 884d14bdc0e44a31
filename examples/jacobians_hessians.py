"""Jacobians and Hessians: how a regression predicts diabetes, and how curved its loss is.

The data are Efron et al.'s: ten measurements of each of 442 patients, and how far their disease
has progressed a year later. Two models are fitted to them and then differentiated:

- A network of one hidden layer, with weight decay. The Jacobian of its prediction with respect to
  the measurements shows which ones a patient's prediction depends on. ``vmap(jacrev)`` and
  ``vmap(jacfwd)`` compute it for all patients at once, and ``vmap(hessian)`` computes how the
  measurements interact.
- Least squares. The loss is quadratic, so its Hessian is the same everywhere, and one Newton step
  from anywhere is the whole fit.

These figures are reproduced, in float64:

- Forward and reverse mode give one Jacobian, and forward over reverse mode the Hessian of
  reverse over reverse, to 1e-12 of the largest entry; central differences agree to 1e-7.
- The three measurements with the largest mean entries in the Jacobian are the three that least
  angle regression selects first (Efron et al., figure 3): bmi, s5 (ltg) and bp (map).
- The Hessian of least squares is 2 X'X / n, to 1e-12, and so is the mean of the samples'
  Hessians. Its condition number is the square of X's: 470.1 (within 0.1).
- Newton's step finds coefficients whose absolute values sum to 3460 (within 1), where the
  paths of Efron et al.'s figure 1 end.

Source: Efron, Hastie, Johnstone and Tibshirani, "Least Angle Regression" (2004); Nocedal and
    Wright, "Numerical Optimization" (2006), chapter 2.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from examples.figures import check
from torchlayers import functional_call, grad, hessian, jacfwd, jacrev, vmap

Parameters = dict[str, Tensor]

HIDDEN = 16
STEPS = 500
WEIGHT_DECAY = 0.03
FIRST_BY_LEAST_ANGLES = {"bmi", "s5", "bp"}

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "jacfwd from jacrev": (0.0, 1e-12),
    "jacrev from central differences": (0.0, 1e-7),
    "hessian from jacrev of jacrev": (0.0, 1e-12),
    "measurements among the first three": (3, 0),
    "hessian from the closed form": (0.0, 1e-12),
    "mean of the samples' hessians from it": (0.0, 1e-12),
    "condition number": (470.1, 0.1),
    "absolute coefficients after one Newton step": (3460.0, 1.0),
}


def load() -> tuple[Tensor, Tensor, list[str]]:
    """Measurements, each column centred and of norm 1; centred outcomes; the columns' names."""
    diabetes = load_diabetes()
    outcomes = torch.tensor(diabetes.target)
    return torch.tensor(diabetes.data), outcomes - outcomes.mean(), diabetes.feature_names


def distance(ours: Tensor, expected: Tensor) -> float:
    """The largest difference, over the largest entry."""
    return ((ours - expected).abs().max() / expected.abs().max()).item()


# The network


def fit(x: Tensor, y: Tensor) -> nn.Module:
    """One hidden layer, fitted by Adam to outcomes of variance 1."""
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    model.to(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    return model


def central_differences(model: nn.Module, x: Tensor, step: float = 1e-5) -> Tensor:
    """The Jacobian of each row's prediction by finite differences."""
    moved = step * torch.eye(x.shape[1], dtype=x.dtype)
    rows = x.unsqueeze(1)
    return ((model(rows + moved) - model(rows - moved)) / (2 * step)).squeeze(2)


def network_figures(x: Tensor, y: Tensor, names: list[str]) -> dict[str, float]:
    x, y = x / x.std(0), y / y.std()
    model = fit(x, y)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def predict(row: Tensor) -> Tensor:
        return functional_call(model, params, (row,)).squeeze(0)

    jacobians = vmap(jacrev(predict))(x)
    hessians = vmap(hessian(predict))(x)
    residuals = vmap(predict)(x) - y
    print(f"network: R2 = {1 - residuals.square().mean() / y.square().mean():.3f}")
    pulls = dict(zip(names, jacobians.mean(0).tolist(), strict=True))
    first = sorted(pulls, key=lambda name: -abs(pulls[name]))
    print("mean Jacobian:", ", ".join(f"{name} {pulls[name]:.2f}" for name in first))
    with torch.no_grad():
        differences = central_differences(model, x)
    return {
        "jacfwd from jacrev": distance(vmap(jacfwd(predict))(x), jacobians),
        "jacrev from central differences": distance(jacobians, differences),
        "hessian from jacrev of jacrev": distance(hessians, vmap(jacrev(jacrev(predict)))(x)),
        "measurements among the first three": len(FIRST_BY_LEAST_ANGLES & set(first[:3])),
    }


# Least squares


def squared_error(coefficients: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (x @ coefficients - y).square().mean()


def least_squares_figures(x: Tensor, y: Tensor) -> dict[str, float]:
    start = torch.zeros(x.shape[1], dtype=x.dtype)
    curvature = hessian(squared_error)(start, x, y)
    closed_form = 2 * x.T @ x / len(x)
    of_samples = vmap(hessian(squared_error), in_dims=(None, 0, 0))(start, x, y)
    fitted = start - torch.linalg.solve(curvature, grad(squared_error)(start, x, y))
    print(f"least squares: R2 = {1 - squared_error(fitted, x, y) / y.square().mean():.3f}")
    return {
        "hessian from the closed form": distance(curvature, closed_form),
        "mean of the samples' hessians from it": distance(of_samples.mean(0), closed_form),
        "condition number": torch.linalg.cond(curvature).item(),
        "absolute coefficients after one Newton step": fitted.abs().sum().item(),
    }


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(0)
    x, y, names = load()
    figures = network_figures(x, y, names) | least_squares_figures(x, y)
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
