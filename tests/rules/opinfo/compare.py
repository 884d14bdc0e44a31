"""Runs a case under torchlayers and under torch.func, and compares the results."""

import warnings
from typing import Any

import torch
import torch.func
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers
from tests.rules.opinfo.cases import LOW, Case
from tests.rules.opinfo.transforms import Run

# The outcomes of a comparison.
AGREES = "agrees"
BOTH_RAISE = "both raise"
ONLY_OURS_WORKS = "only torchlayers works"
ONLY_THEIRS_WORKS = "only torch.func works"
DIFFERS = "differs"

GOOD = (AGREES, BOTH_RAISE)


def compare(run: Run, case: Case) -> tuple[str, str]:
    """The outcome, and details if it is not a good one."""
    theirs, their_error = _outcome(run, torch.func, case)
    ours, our_error = _outcome(run, torchlayers, case)
    assert torchlayers.current_stack() == (), "a layer was left on the stack"
    if their_error and our_error:
        return BOTH_RAISE, ""
    if their_error:
        return ONLY_OURS_WORKS, repr(their_error)
    if our_error:
        return ONLY_THEIRS_WORKS, repr(our_error)
    outcome, why = _same(theirs, ours)
    if outcome == DIFFERS and _is_narrow(case):
        exact, error = _outcome(run, torch.func, case.in_double())
        if error is None and _rounds_as_well(ours, theirs, exact):
            return AGREES, ""
    return outcome, why


def _is_narrow(case: Case) -> bool:
    return any(x.dtype in (*LOW, torch.complex64) for x in case.inputs)


def _rounds_as_well(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether ours is about as close as theirs to the result in double precision.

    jvp's own rules round at other points than torch's formulas do.
    """
    trees = [pytree.tree_flatten(tree) for tree in (ours, theirs, exact)]
    if any(spec != trees[0][1] for _, spec in trees):
        return False
    for our, their, true in zip(*(leaves for leaves, _ in trees), strict=True):
        if not isinstance(our, Tensor) or not (our.is_floating_point() or our.is_complex()):
            continue
        if our.dtype != their.dtype or not our.shape == their.shape == true.shape:
            return False
        finite = our.isfinite() & their.isfinite()
        if not torch.allclose(our[~finite], their[~finite], equal_nan=True):
            return False
        if not bool(true[finite].isfinite().all()):
            return False
        our_error, their_error = ((x.to(true.dtype) - true).abs() for x in (our, their))
        size = true.abs().nan_to_num(0, 0, 0).amax() if true.numel() else 0
        eps = torch.finfo(our.dtype).eps  # a zero result may come from nonzero terms that cancel
        allowed = 4 * their_error[finite].sum() + eps * (16 * size + 1)
        if bool((our_error[finite] > allowed).any()):
            return False
    return True


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
