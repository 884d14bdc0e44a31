"""The time to differentiate a TorchScript graph, by its number of nodes.

``python -m benchmarks.script_nodes`` prints the table, writes it into docs/graph.md and draws
docs/images/script_nodes.svg. It also times torch's own pass on the same graphs.
"""

import warnings
from typing import NamedTuple

import torch

from benchmarks import growth, machine, page
from benchmarks.timing import least_seconds
from torchlayers import _C
from torchlayers.graph import differentiate

PICTURE = page.IMAGES / "script_nodes.svg"
COUNTS = (250, 500, 1000, 2000, 4000, 8000)
MOST_FOR_TORCH = 4000  # here torch's pass takes most of a minute
REPETITIONS = 5

BLOCK = """
    y = (torch.matmul(x, weight) + bias).relu()
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.pow(2).mean(-1, keepdim=True) + 1).sqrt()
    x = x + y.tanh() * 0.5
"""
NODES_A_BLOCK = 12


def chain(nodes: int) -> torch.jit.ScriptFunction:
    """About that many nodes, of twelve kinds, all of which torch's pass supports."""
    blocks = BLOCK * (nodes // NODES_A_BLOCK)
    source = f"def f(x, weight, bias):{blocks}\n    return x.mean()\n"
    return torch.jit.CompilationUnit(source).f


class Row(NamedTuple):
    nodes: int
    nodes_of_df: int
    ours: float
    copies: float  # of f and df: torch's time only to create as many nodes
    theirs: float | None


def measure(count: int) -> Row:
    function = chain(count)
    prepared = _C.prepare_graph(function.graph, None, False, None).graph
    gradient = differentiate(function)
    return Row(
        sum(node.kind() != "prim::Constant" for node in prepared.nodes()),
        len(list(gradient.df.nodes())),
        least_seconds(lambda: differentiate(function), REPETITIONS),
        least_seconds(lambda: (gradient.f.copy(), gradient.df.copy()), REPETITIONS),
        least_seconds(lambda: torch._C._jit_differentiate(prepared), 1)
        if count <= MOST_FOR_TORCH
        else None,
    )


def main() -> None:
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    torch.set_num_threads(1)
    rows = [measure(count) for count in COUNTS]
    cells = [
        (
            f"{row.nodes:,}",
            f"{row.nodes_of_df:,}",
            f"{row.ours:.3f}",
            f"{row.copies:.3f}",
            "" if row.theirs is None else f"{row.theirs:.3f}",
        )
        for row in rows
    ]
    columns = ("nodes", "nodes of df", "torchlayers, s", "copying f and df, s", "torch's pass, s")
    text = f"{page.table(columns, cells)}\n\n({machine.describe()})"
    print(text)
    page.write("graph.md", "nodes", text)
    curves = {
        "torchlayers, to a Gradient": [(row.nodes, row.ours) for row in rows],
        "torch's own pass, the graphs alone": [
            (row.nodes, row.theirs) for row in rows if row.theirs is not None
        ],
    }
    growth.draw(PICTURE, curves, "nodes of the graph", "seconds to differentiate it")


if __name__ == "__main__":
    main()
