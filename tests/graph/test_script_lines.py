"""Gradients in TorchScript graphs that are lines of csrc/rules, evaluated on symbolic values."""

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
    return F.binary_cross_entropy_with_logits(x, y.sigmoid(), w.detach(), pos_weight=v.detach())


def weighted_loss_of_shares(x, y, w):
    return F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), w.detach())


def largest_so_far(x, dim: int):
    return x.cummax(dim)[0] * x.flip([dim])


def summed_without_nan(x):
    return torch.nansum(x, [1]) * torch.nansum(x, [1], keepdim=True).sum()


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
        (largest_so_far, (t(3, 4), -1)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_numbers_and_lists_that_are_known_at_the_call(function, args):
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    gradient = differentiate(torch.jit.script(function))
    found, expected = (
        torch.autograd.grad(f(*args).sum(), leaves, allow_unused=True) for f in (gradient, function)
    )
    torch.testing.assert_close(found, expected)


def tensor_of_both(x, keepdim: bool):
    return x.max(1, keepdim)[0]


def test_a_line_that_decides_by_an_unknown_number_is_refused():
    with pytest.raises(GraphError, match=r"aten::max.*no formula"):
        differentiate(torch.jit.script(tensor_of_both))


def incomplete_gamma(x, y):
    return torch.special.gammainc(x, y)


def test_an_argument_without_a_formula_is_refused():
    differentiate(torch.jit.script(incomplete_gamma), argnums=1)
    with pytest.raises(GraphError, match=r"aten::igamma.*no formula"):
        differentiate(torch.jit.script(incomplete_gamma))


# Operators that only their lines differentiate.
NAMES = (
    "addbmm",
    "addr",
    "copysign",
    "fmax",
    "index_fill",
    "logaddexp2",
    "logit",
    "sinc",
    "special.erfcx",
    "special.i0e",
    "special.xlog1py",
    "take",
)
OPERATORS = [op for op in ops(torch.float64) if full_name(op) in NAMES]


@pytest.mark.parametrize("op", OPERATORS, ids=full_name)
def test_gradients_of_traces_are_autograds(op):
    assert "equal" in {check(case) for case in cases(op, torch.float64, 3)}
