"""The processor time to differentiate an FX graph, by its number of nodes.

``python -m benchmarks.graph_nodes`` prints the table, writes it into docs/graph-fx.md and draws
benchmarks/graph_nodes.svg.
"""

import time
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import machine, page
from torchlayers.graph import differentiate

PICTURE = Path(__file__).parent / "graph_nodes.svg"
COUNTS = (250, 500, 1000, 2000, 4000)
REPETITIONS = 5


def chain(nodes: int) -> GraphModule:
    """A forward of about as many nodes, of twelve kinds, as a deep model's blocks have."""
    bias, weight = torch.randn(8), torch.randn(8, 8)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        for _ in range(nodes // 12):
            y = (x @ weight + bias).relu()
            y = y - y.mean(-1, keepdim=True)
            y = y / (y.pow(2).sum(-1, keepdim=True) + 1).sqrt()
            x = x + y.tanh() * 0.5
        return x.sum()

    return make_fx(function)(torch.randn(4, 8), weight, bias)


def seconds(graph: GraphModule, save: str) -> float:
    """Of the processor, the least of some repetitions: what the work takes undisturbed."""
    times = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        differentiate(graph, save=save)
        times.append(time.process_time() - start)
    return min(times)


def measure() -> list[tuple[int, int, float, float]]:
    rows = []
    for count in COUNTS:
        graph = chain(count)
        backward = len(differentiate(graph).df.graph.nodes)
        rows.append(
            (
                len(graph.graph.nodes),
                backward,
                seconds(graph, "min-compute"),
                seconds(graph, "min-memory"),
            )
        )
    return rows


def draw(rows: list[tuple[int, int, float, float]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    nodes = [row[0] for row in rows]
    axes.plot(nodes, [row[2] for row in rows], "o-", label="min-compute")
    axes.plot(nodes, [row[3] for row in rows], "s-", label="min-memory")
    axes.set(xlabel="nodes of the forward graph", ylabel="seconds to differentiate it")
    axes.set(xlim=0, ylim=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    torch.set_num_threads(1)
    rows = measure()
    lines = [
        "| forward nodes | backward nodes | min-compute, s | min-memory, s |",
        "|--:|--:|--:|--:|",
    ]
    for forward, backward, compute, memory in rows:
        lines.append(f"| {forward:,} | {backward:,} | {compute:.2f} | {memory:.2f} |")
    text = "\n".join([*lines, "", f"({machine.describe()})"])
    print(text)
    page.write("graph-fx.md", "nodes", text)
    draw(rows)


if __name__ == "__main__":
    main()
