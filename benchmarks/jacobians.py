"""Jacobians: the cost of a call for functions of two numbers; jacobian and hessian in each mode.

``python -m benchmarks.jacobians`` writes the latter into docs/benchmarks.md; with ``--quick`` it is
rough, and printed only. The first calls, which choose a mode, are not timed.
"""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.func
from torch import Tensor
from torch.autograd import forward_ad

import torchlayers
from benchmarks import machine, page
from benchmarks.chains import FUNC, OURS, RAW, square
from benchmarks.costs import network, weights
from benchmarks.timing import Effort, Work, by_turns, check_same


def peers() -> dict[str, dict[str, Work]]:
    """For each transform, the same result computed by each peer."""
    x = torch.tensor([0.5, 1.5])
    by_peer = {RAW: by_hand(x), FUNC: by(torch.func, x), OURS: by(torchlayers, x)}
    return {
        transform: {peer: work[transform] for peer, work in by_peer.items()}
        for transform in by_peer[RAW]
    }


def squares(x: Tensor) -> Tensor:
    return x * x


def by(library: ModuleType, x: Tensor) -> dict[str, Work]:
    """The Jacobian of the squares and the Hessian of their sum."""
    jacrev, jacfwd = library.jacrev(squares), library.jacfwd(squares)
    hessian = library.hessian(square)
    return {
        "jacrev": lambda: jacrev(x),
        "jacfwd": lambda: jacfwd(x),
        "hessian": lambda: hessian(x),
    }


def by_hand(given: Tensor) -> dict[str, Work]:
    """One row or column at a time."""
    axes = torch.eye(len(given))

    def jacrev() -> Tensor:
        x = given.detach().requires_grad_()
        return _rows(squares(x), x)

    def jacfwd() -> Tensor:
        with forward_ad.dual_level():
            outputs = [squares(forward_ad.make_dual(given, axis)) for axis in axes]
            return torch.stack([forward_ad.unpack_dual(y).tangent for y in outputs], 1)

    def hessian() -> Tensor:
        x = given.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(square(x), x, create_graph=True)
        return _rows(gradient, x)

    def _rows(y: Tensor, x: Tensor) -> Tensor:
        return torch.stack([torch.autograd.grad(y, x, axis, retain_graph=True)[0] for axis in axes])

    return {"jacrev": jacrev, "jacfwd": jacfwd, "hessian": hessian}


Function = Callable[[Tensor], Tensor]
MODES = ("forward", "reverse", "sparse", "auto")


def perceptron(inputs: int, outputs: int) -> Function:
    layers = weights(inputs, outputs)
    return lambda x: network(layers, x)


def tall(x: Tensor) -> Tensor:
    return torch.outer(x, x).sin().flatten()


def wide(x: Tensor) -> Tensor:
    return x[:4].sin() * x.square().sum()


def dense(x: Tensor) -> Tensor:
    return (x.sum() * x).tanh()


def banded(x: Tensor) -> Tensor:
    return x[2:] * x[:-2] - x[1:-1].exp()


def arrow(x: Tensor) -> Tensor:
    return torch.cat([x.square().sum()[None], x[0] * x[1:].sin()])


def blocks(x: Tensor) -> Tensor:
    return (x.view(-1, 4, 1) * x.view(-1, 1, 4)).sum(2).sin().flatten()


def ode(size: int) -> Function:
    matrix = torch.randn(size, size) / size

    def steps(x: Tensor) -> Tensor:
        for _ in range(100):
            x = x + 0.01 * torch.tanh(matrix @ x)
        return x

    return steps


def stencil(x: Tensor) -> Tensor:
    grid = torch.nn.functional.pad(x.view(30, 30), (1, 1, 1, 1))
    middle = grid[1:-1, 1:-1]
    neighbours = grid[2:, 1:-1] + grid[:-2, 1:-1] + grid[1:-1, 2:] + grid[1:-1, :-2]
    return (neighbours - 4 * middle - middle.exp()).flatten()


def functions() -> dict[str, tuple[Function, int]]:
    """Functions by name, with their numbers of inputs."""
    return {
        "tall, 30 to 900": (tall, 30),
        "wide, 1000 to 4": (wide, 1000),
        "square, 200": (dense, 200),
        "banded, 20": (banded, 20),
        "banded, 1000": (banded, 1000),
        "arrow, 1000": (arrow, 1000),
        "blocks of 4, 1000": (blocks, 1000),
        "network, 8 to 64": (perceptron(8, 64), 8),
        "network, 64 to 8": (perceptron(64, 8), 64),
        "network, 64 to 64": (perceptron(64, 64), 64),
        "ODE, 100 steps of 10": (ode(10), 10),
        "ODE, 100 steps of 100": (ode(100), 100),
        "stencil, 900": (stencil, 900),
    }


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()


def product(x: Tensor) -> Tensor:
    return x.sin().sum() * x.square().sum()


def loss(inputs: int) -> Function:
    of_layers = perceptron(inputs, 1)
    return lambda x: of_layers(x).square().sum()


def functions_of_hessians() -> dict[str, tuple[Function, int]]:
    """Functions whose Hessians are computed, by name, with their numbers of inputs."""
    return {
        "Hessian: sum of cubes, 5": (lambda x: (x**3).sum(), 5),
        "Hessian: sum of cubes, 1000": (lambda x: (x**3).sum(), 1000),
        "Hessian: Rosenbrock, 30": (rosenbrock, 30),
        "Hessian: Rosenbrock, 1000": (rosenbrock, 1000),
        "Hessian: dense, 200": (product, 200),
        "Hessian: network, 64": (loss(64), 64),
    }


def by_mode(transform: Any, f: Function, size: int) -> dict[str, Work]:
    x = torch.rand(size)
    derivatives = {mode: transform(f, mode=mode) for mode in MODES}
    return {mode: lambda of_mode=of_mode: of_mode(x) for mode, of_mode in derivatives.items()}


def measure(quick: bool) -> dict[str, str]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    effort = Effort(rounds=3, block=0.02) if quick else Effort(rounds=7, block=0.05)
    rows = []
    cases = [(torchlayers.jacobian, *case) for case in functions().items()]
    cases += [(torchlayers.hessian, *case) for case in functions_of_hessians().items()]
    for transform, name, (f, size) in cases:
        works = by_mode(transform, f, size)
        check_same(works)
        times = by_turns(works, effort, time.process_time)
        medians = {mode: timing.median for mode, timing in times.items()}
        best = min(medians[mode] for mode in MODES[:3])
        reported: Any = transform(f, mode="auto")
        reported(torch.rand(size))
        chosen = reported.report().signatures[0].mode
        microseconds = [f"{seconds * 1e6:,.0f}" for seconds in medians.values()]
        # The chosen mode's own time beside the best: what the choice alone costs.
        ratios = [f"{medians[mode] / best:.2f}" for mode in (chosen, "auto")]
        rows.append([name, *microseconds, chosen, *ratios])
        print(*rows[-1], sep="  ", flush=True)
    header = ("", *MODES, "chosen", "chosen / best", "auto / best")
    return {
        "benchmarks.md": f"{page.table(header, rows)}\n\nMicroseconds of CPU time on one thread, "
        f"medians. {machine.describe()}; `python -m benchmarks.jacobians`."
    }


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "jacobians")
