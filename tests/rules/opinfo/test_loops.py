"""vmap does not fall back to a loop over samples, with a warning, where torch.func has a batching
rule."""

import re
import warnings
from types import ModuleType

import pytest
import torch
import torch.func

import torchlayers
from tests.rules.opinfo.cases import Case, cases, full_name, ops
from tests.rules.opinfo.transforms import ALL, Run

NESTS = ("vmap", "vmap, first input", "vmap(grad)", "vmap(vjp)", "vmap(jvp)")


def loops(run: Run, library: ModuleType, case: Case) -> set[str] | None:
    """The operators that were run by a loop; None if the call is rejected."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run(library, case)
        except Exception:
            return None
    found = (re.search(r"batching rule for (\S+)\. ", str(each.message)) for each in caught)
    return {match[1] for match in found if match}


@pytest.mark.full
@pytest.mark.parametrize("op", ops(torch.float64), ids=full_name)
def test_no_loop_over_samples_where_torch_func_has_none(op):
    for case in cases(op, torch.float64, 3):
        for nest in NESTS:
            theirs = loops(ALL[nest], torch.func, case)
            ours = loops(ALL[nest], torchlayers, case)
            assert not ours or theirs is None or theirs, (nest, ours)


def test_a_loop_is_seen():
    renorm = next(op for op in ops(torch.float64) if op.name == "renorm")
    (case,) = cases(renorm, torch.float64, 1)
    assert loops(ALL["vmap"], torch.func, case)
