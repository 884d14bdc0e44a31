"""Gradients in TorchScript graphs that are the lines of csrc/rules, evaluated on symbolic values."""

import re

import pytest
import torch
import torch.nn.functional as F

from tests.graph.script_op_db import check
from tests.rules.opinfo.cases import cases, full_name, ops
from torchlayers.graph import GraphError, differentiate

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def nodes_of(graph):
    """The operators of a graph, in order."""
    return re.findall(r"= (aten::\w+|torchlayers::\w+)\(", str(graph))


def softplus_with_parameters(x):
    return F.softplus(x, 2.0, 3.0)


def hyperbolic(x):
    return x.tanh()


def power(x, n: int):
    return x**n


def bounded(x, low: float):
    return x.clamp_min(low) * 2.0


def added(x, y, alpha: float):
    return torch.add(x, y, alpha=alpha)


def rolled(x, n: int):
    return torch.roll(x, n, 0) * x


def padded(x, n: int):
    return torch.constant_pad_nd(x, [n, 2], 0.5).exp()


def indexed(x, i):
    return x[i, 1:] * x[i, :1]


def weighted_loss(x, y, w, v):
    y = y.sigmoid()
    return F.binary_cross_entropy_with_logits(x, y, w, pos_weight=v)


def weighted_loss_of_shares(x, y, w):
    return F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), w)


def summed_without_nan(x):
    return torch.nansum(x, [1]) * torch.nansum(x, [1], keepdim=True).sum()


def scattered_from_a_larger_source(x, i, y):
    return x.scatter_add(0, i, y) * x.scatter(0, i, y)


def test_a_formula_is_the_line_and_saves_what_it_reads():
    gradient = differentiate(torch.jit.script(softplus_with_parameters))
    assert nodes_of(gradient.df) == ["aten::softplus_backward"]
    assert gradient.captured_inputs == (0,) and gradient.captured_outputs == ()


def test_a_line_reads_the_result():
    gradient = differentiate(torch.jit.script(hyperbolic))
    assert nodes_of(gradient.df) == ["aten::tanh_backward"]
    assert gradient.captured_inputs == ()


def t(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (power, (t(3), 3)),
        (bounded, (t(4), 0.1)),
        (added, (t(3, 4), t(4), 0.5)),
        (rolled, (t(4), 3)),
        (padded, (t(4), 1)),
        (indexed, (t(3, 4), torch.tensor([2, 0, 2]))),
        (weighted_loss, (t(3, 4), t(3, 4), t(4), t(1))),
        (weighted_loss_of_shares, (t(3, 4), t(3, 4), t(4))),
        (summed_without_nan, (t(3, 4),)),
        (scattered_from_a_larger_source, (t(3, 4), torch.tensor([[2, 0]]), t(2, 3))),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_numbers_and_lists_that_are_known_at_the_call(function, args):
    inputs = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    expected = torch.autograd.grad(function(*inputs).sum(), leaves)
    gradient = differentiate(torch.jit.script(function))
    torch.testing.assert_close(torch.autograd.grad(gradient(*inputs).sum(), leaves), expected)


def cumulative(x, dim: int):
    return x.cummax(dim)[0]


def test_a_line_that_decides_by_an_unknown_number_is_refused():
    with pytest.raises(GraphError, match="aten::cummax.*no formula"):
        differentiate(torch.jit.script(cumulative))


# op_db's operators whose traces can't be differentiated rightly, each with the reason.
WRONG: dict[str, str] = {}
OPERATORS = [op for op in ops(torch.float64) if full_name(op) not in WRONG]


@pytest.mark.sweep
@pytest.mark.parametrize("op", OPERATORS, ids=full_name)
def test_gradients_of_traces_are_autograds(op):
    for case in cases(op, torch.float64, 3):
        check(case)
