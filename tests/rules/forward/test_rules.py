"""Every rule is tested: op_db or one of our samples reaches it.

Rules that op_db reaches are compared with torch.func in tests/rules/opinfo, and with finite
differences in test_finite_differences; our samples are checked here.
"""

import contextlib
import warnings

import pytest
import torch

import torchlayers as tl
from tests.rules.forward.samples import SAMPLES
from tests.rules.opinfo.cases import cases, ops
from tests.rules.opinfo.transforms import jvp, jvp_grad
from tests.support.derivatives import central_difference, tangents_of
from tests.support.rule_tables import TANGENTS

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

# How many samples of each operator to run; more would reach few further rules.
FIRST = {jvp: 4, jvp_grad: 2}

# Rules that no sample reaches, and why.
UNREACHED: dict[str, str] = {}


@pytest.fixture(scope="module")
def reached_by_op_db():
    found: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops(torch.float64):
            for run, count in FIRST.items():
                for case in cases(op, torch.float64, count):
                    # A rejected operator still reaches the rules before it.
                    with TANGENTS.followed(found), contextlib.suppress(Exception):
                        run(tl, case)
    return found


@pytest.mark.sweep
def test_every_rule_is_reached(reached_by_op_db):
    ours = {f"aten::{name}" for name in SAMPLES}
    unreached = {rule for rule in TANGENTS.operators if rule not in reached_by_op_db | ours}
    assert unreached == {f"aten::{name}" for name in UNREACHED}


def test_samples_are_of_operators_with_rules():
    assert not [name for name in SAMPLES if f"aten::{name}" not in TANGENTS.operators]


def results(f):
    """What f returns, as a list."""

    def listed(*primals):
        returned = f(*primals)
        return [returned] if isinstance(returned, torch.Tensor) else list(returned)

    return listed


samples = pytest.mark.parametrize("name", SAMPLES)


@samples
def test_a_sample_follows_the_rule_of_its_name(name):
    f, primals = SAMPLES[name]
    found: set[str] = set()
    with TANGENTS.followed(found):
        tl.jvp(f, tuple(primals), tangents_of(*primals))
    assert f"aten::{name}" in found


@samples
def test_tangents_of_a_sample_are_central_differences(name):
    f, primals = SAMPLES[name]
    tangents = tangents_of(*primals)
    _, found = tl.jvp(results(f), tuple(primals), tangents)
    expected = central_difference(results(f), primals, tangents, 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@samples
def test_second_tangents_of_a_sample_are_central_differences(name):
    f, primals = SAMPLES[name]
    tangents = tangents_of(*primals)

    def pushed(*primals):
        return tl.jvp(results(f), primals, tangents)[1]

    _, found = tl.jvp(pushed, tuple(primals), tangents)
    expected = central_difference(pushed, primals, tangents, 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@samples
def test_a_sample_in_float32(name):
    f, primals = SAMPLES[name]
    narrow = tuple(x.float() for x in primals)
    tangents = tangents_of(*primals)
    _, found = tl.jvp(results(f), narrow, tuple(t.float() for t in tangents))
    _, expected = tl.jvp(results(f), tuple(primals), tangents)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
