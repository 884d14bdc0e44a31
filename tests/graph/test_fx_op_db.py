"""Every operator of op_db that has a derivative: a differentiated graph's gradients are eager's.

`make test` takes an eighth of the operators, a sample of each, and those that are listed;
`make test-full` takes all samples of all.
"""

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db

from tests.graph.fx_op_db import EXCEPTIONS, check
from tests.opinfo.cases import cases, full_name, ops
from torchlayers import tree
from torchlayers.graph import GraphError, differentiate

DIFFERENTIABLE = ops(torch.float64)
LISTED = [op for op in DIFFERENTIABLE if full_name(op) in EXCEPTIONS]
UNLISTED = [op for op in DIFFERENTIABLE if full_name(op) not in EXCEPTIONS]
WITHOUT_DERIVATIVE = [
    op for op in op_db if not op.supports_autograd and torch.float64 in op.supported_dtypes("cpu")
]


@pytest.mark.parametrize("op", UNLISTED[::8], ids=full_name)
def test_gradients_are_eagers(op):
    for case in cases(op, torch.float64, 1):
        check(case)


@pytest.mark.full
@pytest.mark.parametrize("op", UNLISTED, ids=full_name)
def test_gradients_are_eagers_on_every_sample(op):
    for case in cases(op, torch.float64, None):
        check(case)


@pytest.mark.parametrize("op", LISTED, ids=full_name)
def test_what_is_listed_fails_as_listed(op):
    _, message = EXCEPTIONS[full_name(op)]
    assert any(fails(case, message) for case in cases(op, torch.float64, None))


@pytest.mark.full
@pytest.mark.parametrize("op", LISTED, ids=full_name)
def test_what_is_listed_fails_in_no_other_way(op):
    _, message = EXCEPTIONS[full_name(op)]
    for case in cases(op, torch.float64, None):
        fails(case, message)


def fails(case, message):
    """Whether the sample fails with this message; an error with another one is raised."""
    try:
        check(case)
    except Exception as error:
        if message not in str(error):
            raise
        return True
    return False


def test_every_listed_operator_exists():
    assert {full_name(op) for op in LISTED} == set(EXCEPTIONS)


@pytest.mark.full
@pytest.mark.parametrize("op", WITHOUT_DERIVATIVE, ids=full_name)
def test_an_operator_without_derivative_is_refused(op):
    for case in cases(op, torch.float64, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                graph = make_fx(lambda *xs, f=case.func: tree.leaves(f(*xs)))(*case.inputs)
            except RuntimeError:
                continue  # recording refuses it already
        with pytest.raises(GraphError, match="torchlayers: differentiate: "):
            differentiate(graph)
