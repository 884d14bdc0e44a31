"""Every differentiable operator of op_db: gradients of a differentiated graph equal eager's.

`make test` runs one sample each of an eighth of the operators, and the listed exceptions;
`make test-full` runs all samples of all operators.
"""

import pytest
import torch

from tests.graph.fx_op_db import EXCEPTIONS, check
from tests.rules.opinfo.cases import cases, full_name, ops

DIFFERENTIABLE = ops(torch.float64)
LISTED = [op for op in DIFFERENTIABLE if full_name(op) in EXCEPTIONS]
UNLISTED = [op for op in DIFFERENTIABLE if full_name(op) not in EXCEPTIONS]


@pytest.mark.sweep
@pytest.mark.parametrize("op", UNLISTED[::8], ids=full_name)
def test_gradients_are_eagers(op):
    assert any(check(case) for case in cases(op, torch.float64, None))


@pytest.mark.full
@pytest.mark.parametrize("op", UNLISTED, ids=full_name)
def test_gradients_are_eagers_on_every_sample(op):
    assert any([check(case) for case in cases(op, torch.float64, None)])


@pytest.mark.sweep
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
    """Returns whether the sample fails with this message; other errors propagate."""
    try:
        check(case)
    except Exception as error:
        if message not in str(error):
            raise
        return True
    return False


def test_every_listed_operator_exists():
    assert {full_name(op) for op in LISTED} == set(EXCEPTIONS)
