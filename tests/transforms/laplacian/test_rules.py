"""Every rule is checked: op_db or one of our samples reaches it, and has the Hessian's trace."""

import warnings
from unittest import mock

import pytest
import torch

import torchlayers as tl
from tests.rules.opinfo.cases import Case, cases, full_name, ops
from tests.transforms.laplacian.reference import projected, traces_over
from torchlayers.transforms.laplacian import rules as rules
from torchlayers.transforms.laplacian.layer import ForwardLaplacian
from torchlayers.transforms.layers.rule_table import TAGS, RuleTable

A = torch.ops.aten
# Of each operator; with more elements, the Hessian takes long.
TRIED, SAMPLES, ELEMENTS = 8, 3, 150
# What op_db has and is not compared, and why.
EXCLUDED = {
    "linalg.eigh": "its jvp and vjp differ for matrices that are not symmetric",
}
# As many samples are compared at least; others have no Hessian, draw numbers, or are complex.
COMPARED = 1200


def values(*sizes):
    generator = torch.Generator().manual_seed(2)
    return torch.rand(sizes, generator=generator, dtype=torch.float64) + 0.25


X, Y = values(2, 3), values(3, 2).t()
WEIGHT, KERNEL, BIAS = values(2, 3), values(2, 1, 2), values(2)
# Calls that op_db lacks, by the name of the operator.
OWN = {
    "tanh_backward": (A.tanh_backward, [X, Y]),
    "sigmoid_backward": (A.sigmoid_backward, [X, Y]),
    "linear": (torch.nn.functional.linear, [X, values(4, 3), values(4)]),
    "linear, of its input": (lambda x: torch.nn.functional.linear(x.sin(), WEIGHT, BIAS), [X]),
    "convolution": (
        lambda x: A.convolution(x.sin(), KERNEL, BIAS, [1], [0], [1], False, [0], 1),
        [values(1, 1, 4)],
    ),
    "rsub.Tensor": (lambda x, y: A.rsub.Tensor(x.sin(), y.cos(), alpha=2), [X, Y]),
    "rsub.Scalar": (lambda x: A.rsub.Scalar(x.sin(), 2.0, 3.0).exp(), [X]),
    "sub.Scalar": (lambda x: A.sub.Scalar(x.sin(), 2.0).exp(), [X]),
    "mul.Scalar": (lambda x: A.mul.Scalar(x.sin(), 2.0).exp(), [X]),
    "div.Scalar": (lambda x: A.div.Scalar(x.sin(), 2.0).exp(), [X]),
    "add.Scalar": (lambda x: A.add.Scalar(x.sin(), 2.0).exp(), [X]),
    "div.Tensor_mode": (lambda x, y: A.div.Tensor_mode(x, y, rounding_mode=None), [X, Y]),
    "addmm, of its factors": (
        lambda x, y: A.addmm(BIAS, x.sin(), y.t(), beta=2, alpha=3),
        [X, Y],
    ),
    "addcmul": (lambda x, y: A.addcmul(x.sin(), x, y, value=0.5), [X, Y]),
    "fill": (lambda v: A.fill.Tensor(X, v.exp()), [values()]),
    "copy": (lambda x, y: A.copy(x, y.exp()), [X, values(3)]),
    "baddbmm": (
        lambda x, a, b: A.baddbmm(x.sin(), a.sin(), b, beta=2, alpha=0.5),
        [values(2, 3, 2), values(2, 3, 2), values(2, 2, 2)],
    ),
    "adaptive_max_pool3d": (
        lambda x: A.adaptive_max_pool3d(x.sin(), [1, 2, 2])[0],
        [values(1, 1, 1, 4, 2)],
    ),
    "max_pool3d": (
        lambda x: A.max_pool3d_with_indices(x.sin(), [1, 2, 2])[0],
        [values(1, 1, 1, 4, 2)],
    ),
    "_embedding_bag": (
        lambda x: A._embedding_bag(x.sin(), torch.tensor([0, 1, 0]), torch.tensor([0, 1]))[0].exp(),
        [X],
    ),
    "imag": (lambda x: torch.complex(x.sin(), x.exp()).sin().imag, [X]),
    "real": (lambda x: torch.complex(x.sin(), x.exp()).sin().real, [X]),
    "view_as_real": (lambda x: torch.view_as_real(torch.complex(x.sin(), x.exp()).exp()), [X]),
    "alias": (lambda x: A.alias(x.sin()).exp(), [X]),
    "unsafe_split": (lambda x: A.unsafe_split.Tensor(x.sin(), 1)[1].exp(), [X]),
    "view_as_complex": (
        lambda x: torch.view_as_complex(x.sin().mT.contiguous()).exp().abs(),
        [values(2, 3)],
    ),
    "as_strided": (lambda x: x.sin().as_strided([3], [2]).exp(), [X]),
    "as_strided_scatter": (lambda x, y: A.as_strided_scatter(x.sin(), y, [3], [2]), [X, X[0]]),
}


def followed(found):
    """Adds each operator for which a rule is looked up, below the layer, to ``found``."""
    look_up = RuleTable.find

    def find(self, op):
        if self is ForwardLaplacian._rules:
            found.add(op)
        return look_up(self, op)

    return mock.patch.object(RuleTable, "find", find)


def laplacian_over(f, inputs):
    return tl.laplacian(f, tuple(range(len(inputs))))(*inputs)


def is_small(case):
    is_real = not any(x.is_complex() for x in case.inputs)
    return is_real and sum(x.numel() for x in case.inputs) <= ELEMENTS


def cut(case):
    """Elementwise operators of one tensor have samples of 20 by 20 only: a corner will do."""
    if [x.shape for x in case.inputs] == [(20, 20)]:
        return Case(case.func, [case.inputs[0][:3, :4]])
    return case


def listed(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.fixture(scope="module")
def op_db():
    """The operators met, how many samples were compared, and those that differ."""
    found, compared, wrong = set(), 0, []
    with warnings.catch_warnings(), followed(found):
        warnings.simplefilter("ignore")
        for op in ops(torch.float64):
            name = full_name(op)
            samples = cases(op, torch.float64, TRIED) if name not in EXCLUDED else []
            for case in [case for case in map(cut, samples) if is_small(case)][:SAMPLES]:
                f = projected(case.differentiable)
                try:
                    torch.manual_seed(0)
                    expected = traces_over(f, case.inputs)
                except Exception:  # it has no Hessian to compare with
                    continue
                try:
                    torch.manual_seed(0)
                    ours = laplacian_over(f, case.inputs)
                    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
                    compared += 1
                except Exception as error:
                    wrong.append((name, str(error)))
    return found, compared, wrong


@pytest.mark.sweep
def test_op_db_has_the_traces_of_hessians(op_db):
    _, compared, wrong = op_db
    assert wrong == []
    assert compared >= COMPARED


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_embedding_bags_with_weights_for_each_sample(argnums):
    ids, starts = torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 2])

    def bags(rows, weights):
        found = torch.nn.functional.embedding_bag(
            ids, rows.sin(), starts, mode="sum", per_sample_weights=weights.exp()
        )
        return found.sin().sum()

    def sums(rows, weights):
        products = rows.sin()[ids] * weights.exp()[:, None]
        return torch.stack([products[:2].sum(0), products[2:].sum(0)]).sin().sum()

    found = tl.laplacian(bags, argnums)(X, values(5))
    torch.testing.assert_close(found, tl.laplacian(sums, argnums)(X, values(5)))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # embedding bags
@pytest.mark.parametrize("name", OWN)
def test_own_samples_have_the_traces_of_hessians(name):
    f, inputs = OWN[name]
    number = projected(lambda *inputs: listed(f(*inputs)))
    expected = traces_over(number, inputs)
    torch.testing.assert_close(laplacian_over(number, inputs), expected)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_rule_is_reached(op_db):
    found = set(op_db[0])
    with followed(found):
        for f, inputs in OWN.values():
            laplacian_over(projected(lambda *inputs, f=f: listed(f(*inputs))), inputs)
    operators = {op for op in found if isinstance(op, torch._ops.OpOverload)}
    packets = {op.overloadpacket for op in operators}
    rules = ForwardLaplacian._rules.registered()
    unreached = [
        str(key)
        for key in rules
        if not (
            any(map(TAGS[key], operators)) if isinstance(key, str) else key in operators | packets
        )
    ]
    assert not unreached, ", ".join(unreached)
