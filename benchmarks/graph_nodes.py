"""The CPU time to differentiate an FX graph, by its number of nodes.

``python -m benchmarks.graph_nodes`` prints the table, writes it into docs/graph-fx.md and draws
docs/images/graph_nodes.svg.
"""

from functools import partial

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import growth, machine, page
from benchmarks.timing import least_seconds
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.runtime.partition import partition
from torchlayers.graph import differentiate

PICTURE = page.IMAGES / "graph_nodes.svg"
COUNTS = (250, 500, 1000, 2000, 4000)
REPETITIONS = 5


def chain(nodes: int) -> GraphModule:
    """A forward of about that many nodes, of the twelve kinds that a deep model's blocks have."""
    bias, weight = torch.randn(8), torch.randn(8, 8)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        for _ in range(nodes // 12):
            y = (x @ weight + bias).relu()
            y = y - y.mean(-1, keepdim=True)
            y = y / (y.pow(2).sum(-1, keepdim=True) + 1).sqrt()
            x = x + y.tanh() * 0.5
        return x.sum()

    return make_fx(function)(torch.randn(4, 8), weight, bias)


def captured(graph: GraphModule) -> None:
    """Captures the backward of the graph under autograd, as compile does with a function."""
    x, weight, bias = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)
    arguments = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    joint = record(graph, arguments, gradients=True).graph
    partition(joint, results=1, cotangents=1)


def measure() -> list[tuple[int, int, float, float, float]]:
    rows = []
    for count in COUNTS:
        graph = chain(count)
        compute, memory = (
            least_seconds(partial(differentiate, graph, save=save), REPETITIONS)
            for save in ("min-compute", "min-memory")
        )
        backward = len(differentiate(graph).df.graph.nodes)
        capture = least_seconds(partial(captured, graph), 1)
        rows.append((len(graph.graph.nodes), backward, compute, memory, capture))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rows = measure()
    columns = ("forward nodes", "backward nodes", "min-compute, s", "min-memory, s", "captured, s")
    cells = [(f"{f:,}", f"{b:,}", f"{c:.2f}", f"{m:.2f}", f"{a:.2f}") for f, b, c, m, a in rows]
    text = f"{page.table(columns, cells)}\n\n({machine.describe()})"
    print(text)
    page.write("graph-fx.md", "nodes", text)
    curves = {
        "min-compute": [(row[0], row[2]) for row in rows],
        "min-memory": [(row[0], row[3]) for row in rows],
    }
    growth.draw(PICTURE, curves, "nodes of the graph", "seconds to differentiate it")


if __name__ == "__main__":
    main()
