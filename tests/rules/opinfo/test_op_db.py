"""The sweep over op_db: values, shapes, dtypes and errors agree with torch.func's.

`make test` takes two samples of every operator for the basic transforms in float32, and one for all
of them in float64; `make test-full` takes every sample in every dtype.
"""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.opinfo.compare import AGREES, GOOD, compare
from tests.rules.opinfo.differences import DIFFERENCES
from tests.rules.opinfo.transforms import ALL, BASIC

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def assert_only_listed_differences(op, dtype, transforms, samples):
    """Asserts that every bad outcome is listed, and every listed one occurs."""
    found, listed = {}, {}
    for transform, run in transforms.items():
        key = (full_name(op), transform, name_of(dtype))
        if key in DIFFERENCES:
            listed[transform] = DIFFERENCES[key]
        for i, case in enumerate(cases(op, dtype, samples)):
            outcome, why = compare(run, case)
            if outcome not in GOOD:
                found.setdefault(transform, {})[i] = f"{outcome}: {why}"
    unlisted = {name: found[name] for name in found if name not in listed}
    assert not unlisted, unlisted
    # The difference may occur in a later sample than the quick sweep takes.
    if samples is None:
        outdated = {name: listed[name] for name in listed if name not in found}
        assert not outdated, f"listed as different, but they agree: {outdated}"


@pytest.mark.sweep
@pytest.mark.parametrize("op", ops(torch.float32), ids=full_name)
def test_basic_transforms_agree_with_torch_func(op):
    assert_only_listed_differences(op, torch.float32, BASIC, samples=2)


@pytest.mark.sweep
@pytest.mark.parametrize("op", ops(torch.float64), ids=full_name)
def test_all_transforms_agree_with_torch_func(op):
    assert_only_listed_differences(op, torch.float64, ALL, samples=1)


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("op", op_db, ids=full_name)
def test_every_sample_agrees_with_torch_func(op, dtype):
    if op not in ops(dtype):
        pytest.skip(f"op_db has no differentiable samples of {full_name(op)} in {dtype}")
    assert_only_listed_differences(op, dtype, ALL, samples=None)


def test_every_listed_difference_names_an_operator_a_transform_and_a_dtype():
    names = {full_name(op) for op in op_db}
    dtypes = {name_of(dtype) for dtype in DTYPES}
    for name, transform, dtype in DIFFERENCES:
        assert name in names and transform in ALL and dtype in dtypes


def test_the_sweep_compares_something():
    """Guards against a sweep in which every case raises on both sides."""
    sin = next(op for op in op_db if op.name == "sin")
    (case,) = cases(sin, torch.float64, 1)
    assert {compare(run, case)[0] for run in ALL.values()} == {AGREES}
