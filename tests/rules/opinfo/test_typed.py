"""Typed (unboxed) kernels (NOTE [Typed]) give on op_db what boxed ones give.

Tracing uses the boxed kernels, and makes derivatives from operators (NOTE [One pass]).
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers
from tests.rules.opinfo.cases import Case, cases, full_name, ops
from tests.rules.opinfo.transforms import ALL

EXACT = ("vmap", "vmap, in_dims=-1", "vmap, first input", "vmap(vmap)")
UP_TO_ROUNDING = ("jvp", "vjp", "vmap(jvp)", "vmap(vjp)")


def outcome(transform: str, case: Case) -> Any:
    torch.manual_seed(0)
    try:
        return ALL[transform](torchlayers, case)
    except Exception as error:
        return type(error)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", ops(torch.float64), ids=full_name)
def test_boxes_make_no_difference(op):
    (case,) = list(cases(op, torch.float64, 1))
    for transform in (*EXACT, *UP_TO_ROUNDING):
        found = outcome(transform, case)
        with torchlayers.trace():
            expected = outcome(transform, case)
        if isinstance(expected, type):
            assert found is expected
            continue
        tolerance = {"rtol": 0, "atol": 0} if transform in EXACT else {}
        leaves = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
        for ours, boxed in leaves:
            if isinstance(boxed, Tensor):
                torch.testing.assert_close(ours, boxed, equal_nan=True, **tolerance)
            else:
                assert ours == boxed
