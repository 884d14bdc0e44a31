"""Every rule of jet, against nested jvps.

The operators of op_db, and our samples of what they do not reach, find the rules in the table.
"""

import contextlib
import warnings
from typing import Any, ClassVar

import pytest
import torch
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.rules.forward.samples import SAMPLES as FORWARD_SAMPLES
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.transforms.jet import page
from tests.transforms.jet.reference import by_jet, by_nested_jvps, curves
from tests.transforms.jet.samples import SAMPLES
from torchlayers.transforms.jet import rules as rules
from torchlayers.transforms.jet.layer import Jet

ORDER = 4
COUNT = 2  # samples of each operator

_WRONG_SECOND = "torch's second derivative is wrong, as a result that it uses is a constant to it"
_NO_TANGENT = "torch has no tangent"
_NOT_SYMMETRIC = "the derivatives of the curve are not symmetric matrices"
_STATISTICS = "torch has no derivatives of the mean and the deviation"
XFAIL = {
    "_batch_norm_with_update": _WRONG_SECOND,
    "_native_batch_norm_legit": _WRONG_SECOND,
    "linalg.cholesky": _NOT_SYMMETRIC,
    "linalg.cholesky_ex": _NOT_SYMMETRIC,
    "linalg.norm.subgradients_at_zero": "nested jvps have no second derivative there, jet has zero",
    "native_batch_norm": _STATISTICS,
    "native_layer_norm": _STATISTICS,
    "nn.functional.linear_cross_entropy.chunked": _NO_TANGENT,
    "nn.functional.linear_cross_entropy.chunked_none": _NO_TANGENT,
    "scatter": _NO_TANGENT,
    "sparse.mm.reduce": _NO_TANGENT,
    "sparse.sampled_addmm": "the curve is not sparse",
}
ROUNDED = {"bfloat16": 0.1, "half": 1e-2, "chalf": 1e-2}


def parameters():
    for dtype in (torch.float64, torch.complex128):
        for op in ops(dtype):
            name = full_name(op)
            marks = [pytest.mark.xfail(reason=XFAIL[name])] if name in XFAIL else []
            yield pytest.param(op, dtype, id=f"{name}-{dtype}", marks=marks)


def assert_agree(f, reference, primals, tolerance=1e-7):
    series = curves(primals, ORDER)
    torch.manual_seed(0)
    expected = by_nested_jvps(reference, primals, series)
    torch.manual_seed(0)
    found = by_jet(f, primals, series)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert tl.current_stack() == ()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), list(parameters()))
def test_operators_of_op_db_agree_with_nested_jvps(op, dtype):
    for case in cases(op, dtype, COUNT):
        f = case.differentiable
        assert_agree(f, f, case.inputs, ROUNDED.get(op.name, 1e-7))


def listed(f):
    def run(*operands):
        returned = f(*operands)
        return [returned] if isinstance(returned, torch.Tensor) else list(returned)

    return run


DRAWS = [torch._standard_gamma, torch._sample_dirichlet]
# Products of sparse matrices, which nested jvps can't differentiate one by one.
SPARSE = {"_coalesce", "_sparse_addmm", "sparse_sampled_addmm"}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", [name for name in FORWARD_SAMPLES if name not in SPARSE])
def test_samples_of_forward_mode_agree_with_nested_jvps(name):
    f, primals = FORWARD_SAMPLES[name]
    assert_agree(listed(f), listed(f), primals)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_agree_with_nested_jvps(name):
    f, primals, *other = SAMPLES[name]
    reference = other[0] if other else f
    assert_agree(listed(f), listed(reference), primals)


EDGES = torch.tensor([torch.nan, 0.0, torch.inf, -torch.inf, 1.0, -1.0], dtype=torch.float64)
AT_EDGES = {
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "hardswish": torch.nn.functional.hardswish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "pow, 0.5": lambda x: x**0.5,
    "pow, 2.5": lambda x: x**2.5,
    "pow of zero": lambda x: 0.0**x,
    "elu": lambda x: torch.nn.functional.elu(x[1:]),
    "atan2": lambda x: torch.atan2(x[1:, None], x[1:]),
    "erf": torch.erf,
    "logit": lambda x: torch.logit(x, 0.1),
    "logaddexp": lambda x: torch.logaddexp(x[1:, None], x[1:]),
    "mish": torch.nn.functional.mish,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "lgamma": torch.lgamma,
    "clamp": lambda x: x.clamp(0, 1),
    "copysign": lambda x: torch.copysign(x, -x),
    "var": lambda x: x[4].var(dim=0, correction=0),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", AT_EDGES)
def test_special_values_agree_with_nested_jvps(name):
    f = listed(AT_EDGES[name])
    series = curves([EDGES], 2)
    expected, found = by_nested_jvps(f, [EDGES], series), by_jet(f, [EDGES], series)
    torch.testing.assert_close(found, expected, equal_nan=True)


class Listening(Jet):
    """A jet that notes which operators reach it."""

    name = "listening jet"
    found: ClassVar[set[Any]] = set()

    def process(self, op, args, kwargs):
        if any(isinstance(leaf, tl.LayerTensor) for leaf in pytree.tree_leaves((args, kwargs))):
            self.found.add(op)
        return super().process(op, args, kwargs)


def listen(f, primals):
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # after some operators
        warnings.simplefilter("ignore")
        Listening(1)(f)(tuple(primals), [[x.clone()] for x in primals])


def reaches(key, found):
    return any(key in (op, getattr(op, "overloadpacket", None)) for op in found)


@pytest.mark.sweep
def test_every_rule_is_reached():
    Listening.found = set()
    for op in ops(torch.float64):
        for case in cases(op, torch.float64, COUNT):
            listen(case.differentiable, case.inputs)
    for f, primals in FORWARD_SAMPLES.values():
        listen(f, primals)
    for f, primals, *_ in SAMPLES.values():
        listen(f, primals)
    for f in DRAWS:
        listen(f, [torch.ones(3)])
    missing = {key for key in Jet._rules.registered() if not reaches(key, Listening.found)}
    # By tags, which a number of operators have.
    assert missing == {"any", "constant", "elementwise", "linear", "piecewise linear"}


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_draws_whose_derivatives_torch_lacks_are_refused(draw):
    with pytest.raises(NotImplementedError, match=f"can't differentiate aten::{draw.__name__}"):
        tl.jet(draw, (torch.ones(3),), ([torch.ones(3)],))


def test_the_page_lists_every_rule():
    """If not: python -m tests.transforms.jet.page."""
    assert page.parts()[1] == page.table()
