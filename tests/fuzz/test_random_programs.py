"""Random programs under random stacks of transforms.

They are compared with plain loops and plain autograd, with finite differences, and, where neither
applies, with torch.func. `make test` runs the same few each time. `make test-full` runs new ones
for an hour in all, and prints a failing one as a script, and as a Case for fuzz/regressions.py.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tests.fuzz import Case, cases
from tests.fuzz.checks import (
    check,
    check_against_differences,
    check_compiled,
    check_special,
    precision,
)
from tests.fuzz.regressions import KEPT, KEPT_COMPILED
from tests.fuzz.states import History, check_history, histories
from tests.fuzz.stores import Storing, check_storing, storings

pytestmark = [
    # Some operators have no batching rule in torch and use its fallback.
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
]

# Ignores torch's warnings; a failing simplification of ours is an error.
quietly = pytest.mark.filterwarnings(
    "ignore::UserWarning", "error:torchlayers. compile. what simplifies"
)

SECONDS_IN_FULL = 3600
TESTS = 4 + 3 + 3 + 3 + 3 + 2 + 2 + 4 + 1 + 1 + 1


def check_many(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], None], count: int, full: bool
) -> None:
    """Checks a third of `count` cases, the same each time; in full, new ones until time is up."""
    end = time.monotonic() + SECONDS_IN_FULL / TESTS
    has_failed = False

    def check_one(case: Case | History | Storing) -> None:
        nonlocal has_failed
        # A failing case has to fail again for Hypothesis to shrink and print it.
        if full and time.monotonic() > end and not has_failed:
            return
        hypothesis.note(f"{case!r}\n{case.script}")
        try:
            check(case)
        except BaseException:
            has_failed = True
            raise

    settings = hypothesis.settings(
        max_examples=count if full else count // 3,
        derandomize=not full,
        database=None,
        deadline=None,
        print_blob=full,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    while True:
        settings(hypothesis.given(strategy)(check_one))()
        if not full or time.monotonic() > end:
            return


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_random_programs(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",)), check, 120, full)


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_random_programs_mixed_with_torch_func(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl", "func")), check, 60, full)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_programs_of_mixed_dtypes(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",), mixed=True), check, 120, full)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_programs_that_draw(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",), draws=True), check, 120, full)


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_programs_with_layers_in_python(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",), layer=True), check, 60, full)


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [1, 2])
def test_programs_against_finite_differences(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",)), check_against_differences, 120, full)


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [1, 2])
def test_programs_at_special_values(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",), special=True), check_special, 120, full)


@pytest.mark.sweep(one_in=16)
@quietly
@pytest.mark.parametrize(
    ("depth", "options"),
    [(1, {"mixed": True}), (2, {}), (3, {}), (1, {"special": True})],
    ids=["mixed", "two", "three", "special"],
)
def test_compiled_programs(depth: int, options: dict[str, bool], full: bool) -> None:
    replayed = functools.partial(check_compiled, backend="replay")
    check_many(cases(depth, ("tl",), **options), replayed, 20, full)


@pytest.mark.sweep
@quietly
@pytest.mark.filterwarnings("ignore:torchlayers. compile")  # about state that changes at each call
def test_compiled_programs_whose_state_changes(full: bool) -> None:
    check_many(histories(), check_history, 50, full)


@quietly
@pytest.mark.filterwarnings("ignore:torchlayers. compile")  # about state that changes at each call
def test_compiled_programs_that_store_and_read(full: bool) -> None:
    check_many(storings(), check_storing, 30, full)


@pytest.mark.full
@quietly
def test_programs_that_inductor_compiles(full: bool) -> None:
    compiled = functools.partial(check_compiled, backend="inductor", check_first=True)
    check_many(cases(2, ("tl",)), compiled, 20, full)


@quietly
@pytest.mark.parametrize("case", KEPT_COMPILED.values(), ids=KEPT_COMPILED.keys())
def test_compiled_programs_that_once_failed(case: Case) -> None:
    check_compiled(case, "replay", check_first=True)


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_programs_that_once_failed(case: Case) -> None:
    if case.x.special:
        check_special(case)
    else:
        check(case)
        if precision(case) == torch.float64:
            check_against_differences(case)
