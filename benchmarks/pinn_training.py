"""Training a physics-informed network: the gradient of Poisson's loss by its parameters.

``python -m benchmarks.pinn_training`` prints the table and writes it into docs/workloads.md;
``--quick`` measures roughly, and prints only.
"""

import argparse
import statistics
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import torchlayers
from benchmarks import machine, page
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.timing import Effort, Timing, Work, by_turns
from benchmarks.workloads import torch_operators
from benchmarks.workloads.__main__ import compiler_cache, use_one_thread, versions
from benchmarks.workloads.networks import inputs, mlp, mlp_parameters
from benchmarks.workloads.peers import (
    COMPILED,
    JIT,
    OURS_COMPILED,
    check_same,
    compiled_by_torch,
    jax_work,
)
from benchmarks.workloads.workload import Parameters, Workload

NAMES = (FUNC, RAW, COMPILED, JIT, OURS, OURS_COMPILED)
Function = Callable[[Tensor], Tensor]


def along_axes(transforms: ModuleType, ops: ModuleType, u: Function, point: Tensor) -> Any:
    """Second derivatives by forward over reverse, one axis at a time."""
    slopes = transforms.grad(u)
    axes = ops.axes_of(point)
    return sum(transforms.jvp(slopes, (point,), (axis,))[1] @ axis for axis in axes)


def trace(transforms: ModuleType, ops: ModuleType, u: Function, point: Tensor) -> Any:
    return transforms.hessian(u)(point).trace()


WAYS = {"jvp of grad": along_axes, "trace of hessian": trace}


def training(way: str, layers: int, width: int, points: int) -> Workload:
    """The loss of the equation, plus a loss of values at the same points, for the last bias."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def errors(params: Parameters, point: Tensor, density: Tensor) -> Any:
            def u(point: Tensor) -> Tensor:
                return mlp(ops, params, point)[0]

            laplacian = WAYS[way](transforms, ops, u, point)
            return (laplacian - density) ** 2 + (u(point) - density) ** 2

        each = transforms.vmap(errors, (None, 0, 0))
        gradient: Callable[..., Any] = transforms.grad(
            lambda params, *data: each(params, *data).mean()
        )
        return gradient

    sizes = [2, *[width] * (layers - 1), 1]
    return Workload(
        f"{way}, {layers} layers",
        f"{width} wide, {points} points",
        program,
        by_hand,
        (mlp_parameters(sizes), inputs(points, 2), inputs(points, 1)[:, 0]),
    )


def by_hand(params: Parameters, points: Tensor, densities: Tensor) -> Any:
    leaves = [param.detach().requires_grad_() for param in params]
    x = points.detach().requires_grad_()
    values = mlp(torch_operators, leaves, x)
    (slopes,) = torch.autograd.grad(values.sum(), x, create_graph=True)
    curvatures = [
        torch.autograd.grad(slopes[:, axis].sum(), x, create_graph=True)[0][:, axis]
        for axis in range(2)
    ]
    laplacian = torch.stack(curvatures).sum(0)
    errors = (laplacian - densities) ** 2 + (values[:, 0] - densities) ** 2
    return torch.autograd.grad(errors.mean(), leaves)


def works(workload: Workload) -> dict[str, Work]:
    """The peers that support the workload; all agree with torch.func."""
    program, arguments = workload.program, workload.arguments

    def of(function: Callable[..., Any]) -> Work:
        return lambda: function(*arguments)

    makers: dict[str, Callable[[], Work]] = {
        FUNC: lambda: of(program(torch.func, torch_operators)),
        RAW: lambda: of(workload.by_hand),
        COMPILED: lambda: compiled_by_torch(workload),
        JIT: lambda: jax_work(workload, compiled=True),
        OURS: lambda: of(program(torchlayers, torch_operators)),
        OURS_COMPILED: lambda: of(
            torchlayers.compile(program(torchlayers, torch_operators), wait=True)
        ),
    }
    expected, found = None, {}
    for name, make in makers.items():
        try:
            work = make()
            result = work()
        except Exception:
            if name in (COMPILED, JIT):  # their cell stays empty
                continue
            raise
        expected = result if expected is None else expected
        check_same(f"{workload}: {name}", result, expected)
        found[name] = work
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="roughly, printed only")
    options = parser.parse_args()
    use_one_thread()
    effort = Effort(3, 0.002) if options.quick else Effort(15, 0.01)
    workloads = [
        training(way, layers, width, points)
        for way in WAYS
        for layers in (3, 4)
        for width, points in ((16, 32), (64, 1024))
    ]
    rows = []
    with compiler_cache(), page.progress(len(workloads)) as advance:
        for workload in workloads:
            rows.append(by_turns(works(workload), effort))
            advance()
    text = f"{table(workloads, rows)}\n\n{machine.describe()}{versions()}."
    print(text)
    if not options.quick:
        page.write("workloads.md", "training", text)


def table(workloads: list[Workload], rows: list[dict[str, Timing]]) -> str:
    """Microseconds, our times relative to the compilers', and the geometric means of these."""
    peers = JIT, COMPILED
    lines, ratios = [], dict[str, list[float]]((peer, []) for peer in peers)
    for workload, row in zip(workloads, rows, strict=True):
        cells = [_shown(row[name]) if name in row else "" for name in NAMES]
        for peer in peers:
            if peer in row:
                ratios[peer].append(row[OURS_COMPILED].median / row[peer].median)
            cells.append(f"{ratios[peer][-1]:.2f}" if peer in row else "")
        lines.append([str(workload), *cells])
    means = [f"{statistics.geometric_mean(ratios[p]):.2f}" if ratios[p] else "" for p in peers]
    lines.append(["geometric mean", *[""] * len(NAMES), *means])
    head = [f"{name}, µs" for name in NAMES] + [f"{OURS_COMPILED} / {name}" for name in peers]
    return page.table(["a training step", *head], lines)


def _shown(timing: Timing) -> str:
    return f"{timing.median * 1e6:,.0f} ({timing.spread * 1e6:,.0f})"


if __name__ == "__main__":
    main()
