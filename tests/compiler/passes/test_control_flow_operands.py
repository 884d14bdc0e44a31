"""Operands of branches and loop bodies keep their strides, whatever they are simplified to."""

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.loops.control_flow_operands import runs_graphs

ROW = torch.linspace(0.5, 1, 4, dtype=torch.float64)
ROWS = torch.linspace(0.1, 1, 12, dtype=torch.float64).reshape(3, 4)


def expanded(row):
    """Returns three equal rows, which simplify to one expanded row."""
    return torch.zeros(3, 4, dtype=row.dtype) + row


def steps(u, _):
    return u.view(-1).sin().reshape(3, 4), u.sum()


def captures(rows):
    return tl.while_loop(
        lambda u: u.sum() < 20, lambda u: u + rows.view(-1), torch.zeros(12, dtype=rows.dtype)
    )


GIVEN = {
    "cond": lambda row: tl.cond(
        row.sum() > 0, lambda u: u.view(-1).sin(), lambda u: u.view(-1), expanded(row)
    ),
    "while_loop": lambda row: tl.while_loop(
        lambda u: u.sum() < 20, lambda u: u.view(-1).exp().view(3, 4), expanded(row)
    ),
    "while_loop that captures": lambda row: captures(expanded(row)),
    "scan": lambda row: tl.scan(steps, expanded(row), torch.arange(9.0)),
    "a row that is one": lambda row: tl.while_loop(
        lambda u: u.sum() < 9, lambda u: u * 2, torch.zeros(1, 4) + row[:, None].mT
    ),
}


@pytest.mark.parametrize("f", GIVEN.values(), ids=GIVEN)
def test_operands_keep_their_captured_strides(f):
    captured_graph = record(f, (ROW,))
    of_graphs = [[*filter(runs_graphs, captured_graph.graph.graph.nodes)]]
    of_graphs.append([*filter(runs_graphs, simplify(captured_graph.graph).graph.nodes)])
    recorded, simplified = (
        [[x.meta["val"].stride() for x in node.all_input_nodes if "val" in x.meta] for node in each]
        for each in of_graphs
    )
    assert simplified
    assert recorded == simplified
    torch.testing.assert_close(tl.compile(f, backend="replay")(ROW), f(ROW))


@pytest.mark.full  # compiles for ten seconds
@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_reverse_pass_of_a_loop_with_expanded_carries(backend):
    def f(x):
        return tl.while_loop(lambda c: c.sum() < 10, lambda c: c * 1.5 + 0.1, x)

    rows = tl.vmap(tl.jacrev(f))
    torch.testing.assert_close(tl.compile(rows, backend=backend)(ROWS), rows(ROWS))
