"""op_db captured under transforms and replayed: bitwise equal to the graph, close to eager.

The quick run takes the first sample of every operator, plainly and under one transform (they take
turns); ``--full`` takes all samples and all transforms.
"""

import warnings

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.fx.results import results
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.opinfo.transforms import BASIC
from torchlayers.compiler.capture.record import record
from torchlayers.errors import DataDependentError
from torchlayers.fx.program import replay


def hessian(tf, case):
    return tf.hessian(case.scalar)(*case.inputs)


TRANSFORMS = {**BASIC, "hessian": hessian}
OPS = ops(torch.float32)

# Their result shapes depend on data (for lstsq, with some drivers), so they can't be captured.
NOT_RECORDED = {"masked_select", "linalg.lstsq", "linalg.lstsq.grad_oriented"}


def forward(tf, case):
    return case.func(*case.inputs)


@pytest.fixture(autouse=True)
def _seeded_by_the_test_alone(monkeypatch):
    """op_db seeds torch inside some functions, which is an error during a capture."""

    def run(op, *args, **kwargs):
        return op(*args, **kwargs)

    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", run)


def check(op, case, run):
    tangents = case.tangents()

    def f(*inputs):
        given = type(case)(case.func, list(inputs))
        given.tangents = lambda: tangents
        return run(tl, given)

    torch.manual_seed(0)
    try:
        eager = f(*case.inputs)
    except Exception:
        return  # covered by the sweep over op_db
    try:
        captured_graph = record(f, case.inputs)
    except DataDependentError:
        assert full_name(op) in NOT_RECORDED
        return
    inputs = [*case.inputs, *captured_graph.captured]
    torch.manual_seed(0)
    expected = captured_graph.graph(*inputs)
    torch.manual_seed(0)
    replayed = replay(captured_graph.graph)(inputs)
    torch.testing.assert_close(replayed, [*expected], rtol=0, atol=0, equal_nan=True)
    ours = results(captured_graph, case.inputs, replayed)
    torch.testing.assert_close(ours, pytree.tree_leaves(eager), equal_nan=True)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(
    ("op", "turn"), [(op, turn) for turn, op in enumerate(OPS)], ids=map(full_name, OPS)
)
def test_first_sample_replayed(op, turn):
    transform = [*TRANSFORMS.values()][turn % len(TRANSFORMS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases(op, torch.float32, 1):
            check(op, case, forward)
            check(op, case, transform)


@pytest.mark.full
@pytest.mark.parametrize("run", [forward, *TRANSFORMS.values()], ids=["forward", *TRANSFORMS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", OPS, ids=full_name)
def test_every_sample_replayed(op, dtype, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases(op, dtype, None):
            check(op, case, run)
