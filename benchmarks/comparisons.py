"""Comparisons for forward mode: chains, networks and single operators, each by its peers.

`Comparison` itself is shared by all pages.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
import torch.func
from torch import Tensor

import torchlayers
from benchmarks import page
from benchmarks.chains import FUNC, OURS, RAW, Workload, peers, workloads
from benchmarks.networks import Network, cnn, mlp
from benchmarks.operators import CALLS, survey
from benchmarks.timing import Effort, Timing, Work, compare

FORWARD_AD, PLAIN = "torch's forward AD", "the plain function"
LIBRARIES = {FUNC: torch.func, OURS: torchlayers}
MICRO = 1e6
SLOWEST_BAR = 1.00

Function = Callable[[Tensor], Tensor]


HEADER = ["what", "over", "that, µs", f"{OURS}, µs", "ratio", "bar", f"{FUNC}'s ratio"]


@dataclass(frozen=True)
class Comparison:
    """The same work by several peers, and the highest accepted ratios of our time to theirs."""

    what: str
    peers: dict[str, Work]
    bars: dict[str, float] = field(default_factory=dict)
    beside: dict[str, Work] = field(default_factory=dict)
    divisor: int = 1

    def measure(self, effort: Effort) -> dict[str, Timing]:
        """Microseconds of each peer."""
        seconds = compare(self.peers, effort, self.beside)
        return {name: timing.scaled(MICRO / self.divisor) for name, timing in seconds.items()}

    def lines(self, timings: dict[str, Timing]) -> list[list[str]]:
        """A table row for each bar."""
        lines = []
        for over, bar in self.bars.items():
            floor, ours = timings[over], timings[OURS]
            ratio = judged(ours.median / floor.median, bar)
            theirs = "" if over == FUNC else f"{timings[FUNC].median / floor.median:.2f}"
            lines.append([self.what, over, str(floor), str(ours), *ratio, theirs])
        return lines


def measured(
    comparisons: list[Comparison], long: Effort, operators: list[Comparison], short: Effort
) -> tuple[list[list[str]], dict[str, dict[str, Timing]]]:
    """The rows of the comparisons, and the timings of each operator, with a progress bar."""
    lines: list[list[str]] = []
    timings: dict[str, dict[str, Timing]] = {}
    with page.progress(len(comparisons) + len(operators)) as advance:
        for comparison in comparisons:
            lines += comparison.lines(comparison.measure(long))
            advance()
        for operator in operators:
            timings[operator.what] = operator.measure(short)
            advance()
    return lines, timings


def judged(ratio: float, bar: float) -> list[str]:
    """Two table cells: the measured ratio, and the highest accepted one."""
    return [f"{ratio:.2f}" if ratio <= bar else f"{ratio:.2f}, missed", f"{bar:.2f}"]


def summary(what: str, timings: dict[str, dict[str, Timing]], mean_bar: float) -> list[list[str]]:
    """Rows for a survey: the geometric mean relative to torch.func, and the slowest operator."""
    ratios = {name: of[OURS].median / of[FUNC].median for name, of in timings.items()}
    mean, slowest = statistics.geometric_mean(ratios.values()), max(ratios, key=ratios.__getitem__)
    return [
        [f"survey of 60, {what}: geometric mean", FUNC, "", "", *judged(mean, mean_bar), ""],
        [f"survey, {what}: {slowest}", FUNC, "", "", *judged(ratios[slowest], SLOWEST_BAR), ""],
    ]


def of_chain() -> list[Comparison]:
    """The chain of 48 operators of 12 kinds."""
    (chain,) = (workload for workload in workloads() if workload.name == "12 kinds")
    function, x, divisor = chain.function, chain.sample, chain.divisor
    bars = {FUNC: 0.25}
    return [
        Comparison("jvp, 12 kinds", _jvps(chain), {FUNC: 0.16, FORWARD_AD: 0.22}, {}, divisor),
        Comparison("jvp(grad), 12 kinds", _by(_jvp_of_grad, function, x), bars, {}, divisor),
        Comparison("hessian, 12 kinds", _by(_hessian, function, x), bars, {}, divisor),
    ]


def of_networks() -> list[Comparison]:
    eight = [mlp(8, batch) for batch in (1, 32)]
    sixty_four = [mlp(64, batch) for batch in (1, 32)]
    large = mlp(512, 64)
    return [
        *(_tangent(network, bar=5) for network in eight),
        *(_tangent(network, bar=4) for network in sixty_four),
        _tangent(large, bar=2.3),
        *(_hessian_vector(network, bar=0.25) for network in eight + sixty_four),
        _hessian_vector(large, bar=0.60),
    ]


def of_operators() -> list[Comparison]:
    """jvp of the survey's operators, by the peers that support them."""
    return [
        Comparison(
            operator.name,
            {peer: work for peer, work in _jvps(operator).items() if _is_done(work)},
            beside={PLAIN: lambda operator=operator: operator.function(operator.sample)},
            divisor=operator.divisor,
        )
        for operator in survey()
    ]


def of_nothing() -> Comparison:
    """The survey's calls without their operators: only entering and leaving the transform."""
    nothing = Workload("nothing", lambda x: x, torch.ones(1, 4), CALLS)
    return Comparison(nothing.name, _jvps(nothing), divisor=nothing.divisor)


def of_memory() -> dict[str, dict[str, Work]]:
    """jvp of networks that are large enough for their values to dominate the memory."""
    networks = [mlp(512, 64), cnn(16, 16)]
    return {network.name: _by(_jvp, network.function, network.input) for network in networks}


def _tangent(network: Network, bar: float) -> Comparison:
    function, x = network.function, network.input
    plain = {PLAIN: lambda: function(x)}
    return Comparison(f"jvp, {network.name}", _by(_jvp, function, x), {PLAIN: bar}, plain)


def _hessian_vector(network: Network, bar: float) -> Comparison:
    works = _by(_jvp_of_grad, lambda x: network.function(x).sum(), network.input)
    return Comparison(f"jvp(grad), {network.name}", works, {FUNC: bar})


def _jvps(workload: Workload) -> dict[str, Work]:
    works = peers(workload)["jvp"]
    return {FORWARD_AD: works[RAW], FUNC: works[FUNC], OURS: works[OURS]}


def _by(transform: Callable[[ModuleType, Function, Tensor], Work], *of: object) -> dict[str, Work]:
    return {peer: transform(library, *of) for peer, library in LIBRARIES.items()}


def _jvp(library: ModuleType, function: Function, x: Tensor) -> Work:
    tangent = torch.full_like(x, 0.5)
    return lambda: library.jvp(function, (x,), (tangent,))


def _jvp_of_grad(library: ModuleType, function: Function, x: Tensor) -> Work:
    return _jvp(library, library.grad(function), x)


def _hessian(library: ModuleType, function: Function, x: Tensor) -> Work:
    hessian = library.hessian(function)
    return lambda: hessian(x)


def _is_done(work: Work) -> bool:
    """Whether this peer computes a tangent of the operator, or raises an error."""
    try:
        work()
    except NotImplementedError:
        return False
    return True
