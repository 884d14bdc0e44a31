"""The time to differentiate a TorchScript graph, by its number of nodes.

``python -m benchmarks.script_nodes`` prints the table, writes it into docs/graph.md and draws
benchmarks/script_nodes.svg. torch's own pass differentiates the same graphs beside.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch

from benchmarks import machine, page
from torchlayers import _C
from torchlayers.graph import differentiate

PICTURE = Path(__file__).parent / "script_nodes.svg"
COUNTS = (250, 500, 1000, 2000, 4000)
REPETITIONS = 5

BLOCK = """
    y = (torch.matmul(x, weight) + bias).relu()
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.pow(2).mean(-1, keepdim=True) + 1).sqrt()
    x = x + y.tanh() * 0.5
"""
NODES_A_BLOCK = 12


def chain(nodes: int) -> torch.jit.ScriptFunction:
    """About as many nodes, of twelve kinds, all of which torch's pass knows."""
    blocks = BLOCK * (nodes // NODES_A_BLOCK)
    source = f"def f(x, weight, bias):{blocks}\n    return x.mean()\n"
    return torch.jit.CompilationUnit(source).f


def seconds(action: Callable[[], object]) -> float:
    """The least of some repetitions: what the work takes where nothing disturbs it."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def measure() -> list[tuple[int, int, float, float]]:
    rows = []
    for count in COUNTS:
        function = chain(count)
        prepared = _C.prepare_graph(function.graph, None, False, None).graph
        rows.append(
            (
                sum(node.kind() != "prim::Constant" for node in prepared.nodes()),
                len(list(differentiate(function).df.nodes())),
                seconds(lambda function=function: differentiate(function)),
                seconds(lambda graph=prepared: torch._C._jit_differentiate(graph)),
            )
        )
    return rows


def draw(rows: list[tuple[int, int, float, float]]) -> None:
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    nodes = [row[0] for row in rows]
    axes.plot(nodes, [row[2] for row in rows], "o-", label="torchlayers, to a Gradient")
    axes.plot(nodes, [row[3] for row in rows], "s-", label="torch's own pass, the graphs alone")
    axes.set(xlabel="nodes of the graph", ylabel="seconds to differentiate it")
    axes.set(xlim=0, ylim=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    torch.set_num_threads(1)
    rows = measure()
    lines = [
        "| nodes | nodes of df | torchlayers, s | torch's pass, s |",
        "|--:|--:|--:|--:|",
    ]
    for nodes, backward, ours, theirs in rows:
        lines.append(f"| {nodes:,} | {backward:,} | {ours:.3f} | {theirs:.3f} |")
    text = "\n".join([*lines, "", f"({machine.describe()})"])
    print(text)
    page.write("graph.md", "nodes", text)
    draw(rows)


if __name__ == "__main__":
    main()
