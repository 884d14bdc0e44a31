"""Reverse mode: grad and transforms built from it, compared with torch.func and plain autograd.

``python -m benchmarks.reverse_mode`` prints the tables and writes them into
docs/benchmarks.md and docs/reverse-mode.md; with ``--quick`` they are rough, and printed only.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import device, machine, page
from benchmarks.chains import FUNC, OURS, Workload, peers, workloads
from benchmarks.comparisons import HEADER, LIBRARIES, Comparison, judged, measured, summary
from benchmarks.networks import Network, cnn, mlp
from benchmarks.operators import every, survey
from benchmarks.peak import peak_bytes
from benchmarks.physics import programs
from benchmarks.timing import Effort, Timing, Work

AUTOGRAD = "autograd"
MEAN_BAR, MEMORY_BAR = 0.45, 1.00
KIBI = 2**10


def measure(quick: bool) -> dict[str, str]:
    """The tables for each page, each followed by a line about the machine."""
    long, short = (
        (Effort(9, 0.001), Effort(5, 0.001)) if quick else (Effort(101, 0.003), Effort(51, 0.002))
    )
    comparisons = [*of_chain(), *of_programs(), *of_networks()]
    operators = of_operators()
    lines, timings = measured(comparisons, long, operators, short)
    where = f"{machine.describe()}."
    whole = page.table(HEADER, lines + summary("vjp", timings, MEAN_BAR))
    return {
        "benchmarks.md": "\n\n".join([whole, _memory(), _survey(timings), where]),
        "reverse-mode.md": "\n\n".join([whole, where]),
    }


def of_chain() -> list[Comparison]:
    """The chain of 48 operators of 12 kinds, and nested gradients of it."""
    (chain,) = (workload for workload in workloads() if workload.name == "12 kinds")
    by_transform = peers(chain)

    def of(what: str, bars: dict[str, float], works: dict[str, Work]) -> Comparison:
        return Comparison(f"{what}, 12 kinds", works, bars, divisor=chain.divisor)

    def known(transform: str) -> dict[str, Work]:
        by_hand, theirs, ours = by_transform[transform].values()
        return {AUTOGRAD: by_hand, FUNC: theirs, OURS: ours}

    return [
        of("grad", bars_of_grad(), known("grad")),
        of("vmap(grad)", {FUNC: 0.42}, known("vmap(grad)")),
        of("grad(grad)", {FUNC: 0.32, AUTOGRAD: 0.65}, known("grad(grad)")),
        of("grad(grad(grad))", {FUNC: 0.28}, _by(chain, _three_deep)),
        of("jvp(grad)", {FUNC: 0.18}, _by(chain, _jvp_of_grad)),
        of("hessian", {FUNC: 0.18}, _by(chain, lambda library, f: library.hessian(f))),
    ]


def bars_of_grad() -> dict[str, float]:
    """On a GPU launching dominates, and costs every peer the same, so the bars are higher."""
    return {FUNC: 0.38, AUTOGRAD: 0.80} if device.is_processor() else {FUNC: 0.50, AUTOGRAD: 0.90}


def of_programs() -> list[Comparison]:
    return [
        Comparison(name, {peer: of(library) for peer, library in LIBRARIES.items()}, {FUNC: 0.40})
        for name, of in programs().items()
    ]


def of_networks() -> list[Comparison]:
    """Networks so large that kernels dominate."""
    bars = {FUNC: 1.00, AUTOGRAD: 1.02}
    return [
        Comparison(f"grad, {network.name}", _gradients(network), bars)
        for network in (mlp(512, 64), cnn(16, 16))
    ]


def of_operators() -> list[Comparison]:
    """The vjp of eight calls of an operator, forward and backward."""
    return [
        Comparison(operator.name, _vjps(operator), divisor=operator.divisor)
        for operator in survey(every)
    ]


def _by(workload: Workload, transform: Callable) -> dict[str, Work]:  # type: ignore[type-arg]
    def work(library: object) -> Work:
        transformed = transform(library, workload.function)
        return lambda: transformed(workload.sample)

    return {peer: work(library) for peer, library in LIBRARIES.items()}


def _three_deep(library, function):  # type: ignore[no-untyped-def]
    for _ in range(2):
        function = _summed(library.grad(function))
    return library.grad(function)


def _summed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x).sum(-1)


def _jvp_of_grad(library, function):  # type: ignore[no-untyped-def]
    gradient = library.grad(function)
    return lambda x: library.jvp(gradient, (x,), (torch.full_like(x, 0.5),))


def _vjps(workload: Workload) -> dict[str, Work]:
    """All results, pulled back to the argument with cotangents created beforehand."""
    function, x = workload.function, workload.sample
    cotangents = tuple(
        torch.linspace(0.05, 0.15, result.numel()).view_as(result) for result in function(x)
    )

    def by_hand() -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, cotangents)[0]

    def pulled_back(library, function):  # type: ignore[no-untyped-def]
        return lambda x: library.vjp(function, x)[1](cotangents)[0]

    return {AUTOGRAD: by_hand, **_by(workload, pulled_back)}


def _gradients(network: Network) -> dict[str, Work]:
    def loss(x: Tensor) -> Tensor:
        return network.function(x).square().sum()

    def by_hand() -> Tensor:
        x = network.input.detach().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0]

    whole = Workload(network.name, loss, network.input.unsqueeze(0))
    return {AUTOGRAD: by_hand, **_by(whole, lambda library, f: library.grad(f))}


def _survey(timings: dict[str, dict[str, Timing]]) -> str:
    """The operators as rows, the slowest compared with torch.func first."""
    rows = [
        [name, *map(str, of.values()), f"{of[OURS].median / of[FUNC].median:.2f}"]
        for name, of in timings.items()
    ]
    rows.sort(key=lambda row: -float(row[-1]))
    peers = [f"{peer}, µs" for peer in (AUTOGRAD, FUNC, OURS)]
    return page.table(["vjp of", *peers, f"{OURS} / {FUNC}"], rows)


def _memory() -> str:
    def chain(x: Tensor) -> Tensor:
        for _ in range(1000):
            x = x.sin() * 1.01
        return x

    networks = [cnn(16, 16), Network("2,000 operators", chain, torch.ones(1000))]
    rows = []
    for network in networks:
        peaks = {peer: peak_bytes(work) for peer, work in _gradients(network).items()}
        shown = [f"{peaks[peer] / KIBI:,.0f}" for peer in (AUTOGRAD, FUNC, OURS)]
        ratio = judged(peaks[OURS] / peaks[AUTOGRAD], MEMORY_BAR)
        rows.append([f"grad, {network.name}", *shown, *ratio])
    header = [f"{peer}, KiB" for peer in (AUTOGRAD, FUNC, OURS)]
    return page.table(["peak memory", *header, f"{OURS} / {AUTOGRAD}", "bar"], rows)


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "reverse mode")
