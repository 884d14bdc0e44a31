"""On op_db, values recomputed for a gradient are bitwise equal to saved ones.

`make test` takes an operator's first sample, `make test-full` all of them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchlayers as tl
from tests.rules.opinfo.cases import Case, cases, full_name, ops
from torchlayers.checkpoint_policies import nothing_saveable
from torchlayers.errors import MemoryBudgetError, RecomputationError
from torchlayers.remat.budget import budgeted


def checkpointed(func: Callable[..., Any]) -> Callable[..., Any]:
    return tl.checkpoint(func, policy=nothing_saveable)


def within_the_least(func: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the function within the smallest memory budget that it can meet."""

    def wrapper(*args: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return budgeted("grad", func, 1)(*args)
        except MemoryBudgetError as error:
            torch.set_rng_state(state)
            return budgeted("grad", func, error.least)(*args)

    return wrapper


# With max_norm they scale rows of the weight in place; a checkpoint's arguments must not change.
WRITES_TO_ITS_ARGUMENT = {"nn.functional.embedding", "nn.functional.embedding_bag"}

# LAPACK's summation order depends on memory addresses: two calls of the same gradient differ.
DEPENDS_ON_ADDRESSES = {"linalg.lstsq", "linalg.lstsq.grad_oriented"}

WAYS = {"checkpoint": checkpointed, "memory_budget": within_the_least}


def grad(func: Callable[..., Any], case: Case) -> Any:
    return tl.grad(Case(func, []).scalar, tuple(range(len(case.inputs))))(*case.inputs)


def vmap_grad(func: Callable[..., Any], case: Case) -> Any:
    batch = case.batched()
    transform = tl.grad(Case(func, []).scalar, tuple(range(len(batch))))
    return tl.vmap(transform, randomness="different")(*batch)


NESTS = {"grad": grad, "vmap(grad)": vmap_grad}


def outcome(nest: Callable[..., Any], func: Callable[..., Any], case: Case) -> Any:
    torch.manual_seed(0)
    try:
        return nest(func, case)
    except Exception as error:
        return type(error)


def assert_alike(op: Any, way: str, limit: int | None) -> None:
    for case in cases(op, torch.float64, limit):
        for name, nest in NESTS.items():
            plain = outcome(nest, case.func, case)
            if isinstance(plain, type):
                continue  # rejected without recomputation too
            found = outcome(nest, WAYS[way](case.func), case)
            if found is RecomputationError and full_name(op) in WRITES_TO_ITS_ARGUMENT:
                continue
            assert not isinstance(found, type), (name, found)
            exactly = {} if full_name(op) in DEPENDS_ON_ADDRESSES else {"rtol": 0, "atol": 0}
            for ours, theirs in zip(found, plain, strict=True):
                torch.testing.assert_close(ours, theirs, equal_nan=True, **exactly)


def ways_and_ops() -> list[Any]:
    return [
        pytest.param(way, op, id=f"{way}-{full_name(op)}")
        for way in WAYS
        for op in ops(torch.float64)
    ]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("way", "op"), ways_and_ops())
def test_a_first_sample_computed_again(way: str, op: Any) -> None:
    assert_alike(op, way, 1)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("way", "op"), ways_and_ops())
def test_all_samples_computed_again(way: str, op: Any) -> None:
    assert_alike(op, way, None)
