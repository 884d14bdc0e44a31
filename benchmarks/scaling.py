"""How cost grows with depth, operators, batch and parameters, compared with torch.func.

``python -m benchmarks.scaling`` prints the slopes, writes them into docs/workloads.md and draws
docs/images/scaling_*.svg; with ``--quick`` they are rough, and printed only.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import growth, machine, page
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.comparisons import LIBRARIES, MICRO, judged
from benchmarks.timing import Work, check_same, least_within

LINEAR = 1.05  # a slope of 1, plus the noise of a fit

Make = Callable[[ModuleType, int], Work]


@dataclass(frozen=True)
class Growth:
    """A cost as a function of a count: each of its curves calls a library with the count."""

    name: str
    across: str
    counts: tuple[int, ...]
    curves: dict[str, Make]
    raw: Callable[[int], Work] | None = None
    an_operator: bool = False

    @property
    def up(self) -> str:
        return "µs a plain operator" if self.an_operator else "µs a call"


Points = dict[str, list[tuple[int, float]]]  # by library


def growths() -> list[Growth]:
    nests = {"grad": _nested_grad, "jvp": _nested_jvp, "vmap": _nested_vmap}
    powers = tuple(4**power for power in range(1, 6))
    return [
        Growth("depth", "transforms in the nest", (1, 2, 3, 4, 5, 6), nests, an_operator=True),
        Growth("operators", "operators of the function", powers, {"grad": _operators}),
        Growth("batch", "samples", (*powers, 4**6, 4**7), {"vmap(grad)": _batch}),
        Growth(
            "parameters", "tensors in the pytree", powers, {"grad": _parameters}, _raw_parameters
        ),
    ]


def measure(quick: bool) -> dict[str, str]:
    """The slope of each curve; and, unless quick, the plots."""
    seconds = 0.01 if quick else 0.3
    rows = []
    every = growths()
    with page.progress(sum(len(growth.curves) for growth in every)) as advance:
        for of in every:
            measured = {}
            for name, make in of.curves.items():
                counts = of.counts[:4] if quick else of.counts
                measured[name] = _measured(of, make, seconds, counts)
                rows.append(_row(of, name, measured[name]))
                advance()
            if not quick:
                draw(of, measured, page.IMAGES / f"scaling_{of.name}.svg")
    header = ["cost by", "of", f"slope, {RAW}", f"slope, {FUNC}", f"slope, {OURS}", "bar"]
    return {"workloads.md": f"{page.table(header, rows)}\n\n{machine.describe()}."}


def draw(of: Growth, measured: dict[str, Points], picture: Path) -> None:
    curves = {
        f"{name}, {library}": points
        for name, by_library in measured.items()
        for library, points in by_library.items()
    }
    theirs = [name for name in curves if not name.endswith(OURS)]
    growth.draw(picture, curves, of.across, of.up, theirs, logarithmic=not of.an_operator)


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent of the power law that best fits the larger half of the points.

    At small counts, constant costs flatten the curve.
    """
    larger = points[len(points) // 2 :]
    counts, costs = zip(*larger, strict=True)
    return statistics.linear_regression(
        [math.log(count) for count in counts], [math.log(cost) for cost in costs]
    ).slope


def _measured(of: Growth, make: Make, seconds: float, counts: tuple[int, ...]) -> Points:
    """Microseconds of each peer at each count."""
    points: Points = {peer: [] for peer in (*LIBRARIES, *([RAW] if of.raw else []))}
    for count in counts:
        works = {peer: make(library, count) for peer, library in LIBRARIES.items()}
        if of.raw:
            works[RAW] = of.raw(count)
        check_same(works)
        for peer, work in works.items():
            cost = least_within(work, seconds) * MICRO
            operators = count_plain_operators(work) if of.an_operator else 1
            points[peer].append((count, cost / operators))
    return points


def _row(of: Growth, name: str, points: Points) -> list[str]:
    slopes = {peer: slope(of_peer) for peer, of_peer in points.items()}
    raw = f"{slopes[RAW]:.2f}" if RAW in slopes else ""
    bar = max(LINEAR, slopes.get(RAW, LINEAR))
    return [of.across, name, raw, f"{slopes[FUNC]:.2f}", *judged(slopes[OURS], bar)]


def count_plain_operators(work: Work) -> int:
    """The number of operators called below all transforms."""
    with _Counter() as counter:
        work()
    return counter.count


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def _wave(x: Tensor) -> Tensor:
    return x * x.sin()


def _nested_grad(library: ModuleType, depth: int) -> Work:
    function, x = _wave, torch.tensor(0.5)
    for _ in range(depth):
        function = library.grad(function)
    return lambda: function(x)


def _nested_jvp(library: ModuleType, depth: int) -> Work:
    function, x = _wave, torch.tensor(0.5)
    for _ in range(depth):
        function = _slope_along_one(library, function)
    return lambda: function(x)


def _slope_along_one(
    library: ModuleType, function: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    return lambda x: library.jvp(function, (x,), (torch.ones_like(x),))[1]


def _nested_vmap(library: ModuleType, depth: int) -> Work:
    function, x = _wave, torch.linspace(0, 1, 2**depth).view([2] * depth)
    for _ in range(depth):
        function = library.vmap(function)
    return lambda: function(x)


def _operators(library: ModuleType, count: int) -> Work:
    def function(x: Tensor) -> Tensor:
        for _ in range(count - 1):
            x = x.sin()
        return x.sum()

    gradient, x = library.grad(function), torch.linspace(0, 1, 4)
    return lambda: gradient(x)


def _batch(library: ModuleType, samples: int) -> Work:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(16, 16, generator=generator) / 4 for _ in range(2)]

    def function(x: Tensor) -> Tensor:
        for weight in weights:
            x = F.linear(x, weight).tanh()
        return x.sum()

    x = torch.linspace(-1, 1, 16 * samples).view(samples, 16)
    gradients = library.vmap(library.grad(function))
    return lambda: gradients(x)


def _parameters(library: ModuleType, count: int) -> Work:
    def function(params: dict[str, Tensor]) -> Tensor:
        return torch.stack([param.sin() for param in params.values()]).sum()

    gradient = library.grad(function)
    params = {f"p{index}": torch.linspace(0, 1, 4) for index in range(count)}
    return lambda: tuple(gradient(params).values())


def _raw_parameters(count: int) -> Work:
    params = [torch.linspace(0, 1, 4).requires_grad_() for _ in range(count)]

    def gradient() -> tuple[Tensor, ...]:
        value = torch.stack([param.sin() for param in params]).sum()
        return torch.autograd.grad(value, params)

    return gradient


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "scaling")
