"""Whole programs, simplified and as captured: the workloads, random programs, op_db.

The shapes, strides and dtypes of all values are also compared with their fake values.
"""

import warnings
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor

import torchlayers as tl
from benchmarks.workloads import torch_operators
from benchmarks.workloads.catalogue import catalogue
from tests.compiler.passes.simplified import same
from tests.fuzz import Case, cases
from tests.fuzz.checks import ours
from tests.fuzz.values import APART
from tests.rules.opinfo.cases import cases as samples
from tests.rules.opinfo.cases import full_name, ops
from tests.rules.opinfo.transforms import BASIC
from torchlayers.compiler.capture.record import record

OPS = ops(torch.float32)
# Nearly singular problems, or results that the inputs do not determine.
ILL_CONDITIONED = {"linalg.pinv.singular", "pca_lowrank", "svd_lowrank", "empty_strided"}


@pytest.mark.sweep
@pytest.mark.parametrize("fuse_small", [False, True], ids=["replay", "inductor"])
@pytest.mark.parametrize("workload", [workload for workload, _ in catalogue()], ids=str)
def test_workloads(workload, fuse_small):
    func = workload.program(tl, torch_operators)
    same(func, *workload.arguments, exact=False, fuse_small=fuse_small)


@pytest.mark.full  # compiles for ten seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_random_programs(depth: int) -> None:
    def check(case: Case) -> None:
        hypothesis.note(f"{case!r}\n{case.script}")
        if isinstance(ours(case), Exception):
            return  # which tests/fuzz/test_random_programs.py looks at
        names: dict[str, Any] = {"torch": torch, "APART": APART, "K": case.constant.tensor()}
        names["tl"] = tl
        exec(compile(case.source, "<random program>", "exec"), names)
        for fuse_small in (False, True):
            x = case.x.tensor()
            same_if_recorded(names["f0"], x, fuse_small=fuse_small, checked=depth < 3)

    settings = hypothesis.settings(
        max_examples=15, derandomize=True, database=None, deadline=None,
        phases=[hypothesis.Phase.generate],  # shrinking records a program hundreds of times
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )  # fmt: skip
    settings(hypothesis.given(cases(depth, ("tl",)))(check))()


@pytest.mark.sweep(one_in=16)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "turn"), [(op, turn) for turn, op in enumerate(OPS)], ids=map(full_name, OPS)
)
def test_sample_of_op_db(op, turn):
    if full_name(op) in ILL_CONDITIONED:
        pytest.skip("results that rounding decides")
    transform = [*BASIC.values()][turn % len(BASIC)]
    for case in samples(op, torch.float32, 1):
        tangents = case.tangents()

        def func(*inputs: Tensor, case: Any = case, tangents: Any = tangents) -> Any:
            given = type(case)(case.func, list(inputs))
            given.tangents = lambda: tangents
            return transform(tl, given)

        torch.manual_seed(0)
        try:
            func(*case.inputs)
        except Exception:
            return  # which the sweep over op_db looks at
        same_if_recorded(func, *case.inputs, fuse_small=turn % 2 == 0)


def same_if_recorded(func: Any, *args: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            record(func, args)
        except Exception:
            return  # covered by the tests of capture
        warnings.filterwarnings("error", "torchlayers: compile: a pass that simplifies")
        same(func, *args, exact=False, **options)
