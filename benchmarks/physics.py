"""Programs dominated by gradients of gradients: MAML, a Lennard-Jones cluster, a PINN."""

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Work

INNER_STEPS, RATE = 3, 0.05


def programs() -> dict[str, Callable[[ModuleType], Work]]:
    """The programs by name; each is called with the library that transforms it."""
    return {
        "MAML, 3 inner steps": maml,
        "Lennard-Jones, 13 atoms: forces": forces,
        "Lennard-Jones, 4 atoms: Hessian": hessian,
        "PINN, 2 x 16 wide, 32 points": pinn,
    }


def maml(library: ModuleType) -> Work:
    """The meta-gradient of a small network that takes three gradient steps (Finn 2017)."""
    weights, x = _mlp([1, 16, 1]), torch.linspace(-1, 1, 8).unsqueeze(1)

    def loss(weights: list[Tensor], y: Tensor) -> Tensor:
        return ((_apply(weights, x) - y) ** 2).mean()

    def after_adaptation(weights: list[Tensor]) -> Tensor:
        for _ in range(INNER_STEPS):
            gradients = library.grad(loss)(weights, x.sin())
            weights = [w - RATE * g for w, g in zip(weights, gradients, strict=True)]
        return loss(weights, x.cos())

    meta_gradient = library.grad(after_adaptation)
    return lambda: tuple(meta_gradient(weights))


def forces(library: ModuleType) -> Work:
    force, arguments = library.grad(lennard_jones), cluster(13)
    return lambda: force(*arguments)


def hessian(library: ModuleType) -> Work:
    second, arguments = library.hessian(lennard_jones), cluster(4)
    return lambda: second(*arguments)


def pinn(library: ModuleType) -> Work:
    """The gradient of the squared residual of Poisson's equation on the plane."""
    weights = _mlp([2, 16, 16, 1])
    points = torch.rand(32, 2, generator=torch.Generator().manual_seed(1))

    def laplacian(weights: list[Tensor], point: Tensor) -> Tensor:
        def slopes(point: Tensor) -> Tensor:
            return library.grad(lambda p: _apply(weights, p).sum())(point)

        axes = torch.eye(2, device=point.device)
        return sum(library.jvp(slopes, (point,), (axis,))[1] @ axis for axis in axes)

    def loss(weights: list[Tensor]) -> Tensor:
        return ((library.vmap(laplacian, (None, 0))(weights, points) - 1) ** 2).mean()

    gradient = library.grad(loss)
    return lambda: tuple(gradient(weights))


def lennard_jones(atoms: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The energy of the pairs of atoms; for several clusters, the total."""
    distances = atoms[..., first, :] - atoms[..., second, :]
    inverse = 1 / (distances**2).sum(-1) ** 3
    return 4 * (inverse**2 - inverse).sum()


def cluster(atoms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms near the points of a cubic grid, and the two ends of every pair of them."""
    side = math.ceil(round(atoms ** (1 / 3), 6))
    grid = torch.cartesian_prod(*[torch.arange(float(side))] * 3)[:atoms]
    noise = torch.rand(grid.shape, generator=torch.Generator().manual_seed(0))
    return (1.1 * grid + 0.05 * noise, *torch.triu_indices(atoms, atoms, 1))


def _mlp(widths: list[int]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(wide, narrow, generator=generator) / narrow**0.5
        for narrow, wide in itertools.pairwise(widths)
    ]


def _apply(weights: list[Tensor], x: Tensor) -> Tensor:
    *hidden, last = weights
    for weight in hidden:
        x = torch.tanh(x @ weight.t())
    return x @ last.t()
