"""Running a case under torchlayers and under torch.func, and comparing what comes out."""

import warnings
from typing import Any

import torch
import torch.func
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers
from tests.opinfo.cases import Case
from tests.opinfo.transforms import Run

# What a comparison can come to.
AGREES = "agrees"
BOTH_RAISE = "both raise"
ONLY_OURS_WORKS = "only torchlayers works"
ONLY_THEIRS_WORKS = "only torch.func works"
DIFFERS = "differs"

GOOD = (AGREES, BOTH_RAISE)


def compare(run: Run, case: Case) -> tuple[str, str]:
    """The outcome, and what to know of it where it is not a good one."""
    theirs, their_error = _outcome(run, torch.func, case)
    ours, our_error = _outcome(run, torchlayers, case)
    assert torchlayers.current_stack() == (), "a layer was left on the stack"
    if their_error and our_error:
        return BOTH_RAISE, ""
    if their_error:
        return ONLY_OURS_WORKS, repr(their_error)
    if our_error:
        return ONLY_THEIRS_WORKS, repr(our_error)
    return _same(theirs, ours)


def _outcome(run: Run, tf: Any, case: Case) -> tuple[Any, Exception | None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(tf, case), None
        except Exception as error:
            return None, error


def _same(theirs: Any, ours: Any) -> tuple[str, str]:
    their_leaves, their_spec = pytree.tree_flatten(theirs)
    our_leaves, our_spec = pytree.tree_flatten(ours)
    if their_spec != our_spec:
        return DIFFERS, f"structure {our_spec} for {their_spec}"
    for theirs, ours in zip(their_leaves, our_leaves, strict=True):
        if not isinstance(theirs, Tensor):
            if theirs != ours:
                return DIFFERS, f"{ours!r} for {theirs!r}"
            continue
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            return DIFFERS, str(error)
    return AGREES, ""
