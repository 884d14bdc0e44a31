"""Random programs give the same result whichever rules are switched on."""

import random

import hypothesis
import pytest
import torch
import torch.func
from hypothesis import strategies as st

import torchlayers as tl
from tests.fuzz import Case, cases
from tests.fuzz.checks import REFUSALS
from tests.support.rule_tables import COTANGENTS

# Some operators have no batching rule in torch and use its fallback.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

# Outermost first.
NESTS = {
    "grad": ("grad",),
    "vjp": ("vjp",),
    "jacrev": ("jacrev",),
    "vmap(grad)": ("vmap", "grad"),
    "grad(vmap)": ("grad", "vmap"),
    "grad(grad)": ("grad", "grad"),
    "vjp(vjp)": ("vjp", "vjp"),
    "jvp(grad)": ("jvp", "grad"),
    "grad(jvp)": ("grad", "jvp"),
    "jacrev(jacrev)": ("jacrev", "jacrev"),
    "vmap(jvp(grad))": ("vmap", "jvp", "grad"),
}


def result(case: Case, off: list[str]) -> torch.Tensor | None:
    """None if it is rejected because the program has overwritten a value that is needed."""
    with COTANGENTS.switched_off(off):
        try:
            return case.run(tl=tl)
        except RuntimeError as error:
            if not any(words in str(error) for words in REFUSALS):
                raise
            return None
        finally:
            assert tl.current_stack() == ()


def check(case: Case, seed: int) -> None:
    with_torchs = result(case, COTANGENTS.operators)
    some = random.Random(seed).sample(COTANGENTS.operators, len(COTANGENTS.operators) // 2)
    for off in ([], some):
        found = result(case, off)
        if with_torchs is not None:
            assert found is not None, "a rule needs what torch's own derivative does not"
            scale = max([1.0, *with_torchs.abs().flatten().tolist()])
            torch.testing.assert_close(found, with_torchs, rtol=1e-7, atol=1e-9 * scale)


def check_many(kinds: tuple[str, ...], count: int) -> None:
    def check_one(case: Case, seed: int) -> None:
        hypothesis.note(case.script)
        check(case, seed)

    settings = hypothesis.settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    programs = cases(len(kinds), ("tl",), kinds)
    settings(hypothesis.given(programs, st.integers(0, 10**6))(check_one))()


@pytest.mark.sweep
@pytest.mark.parametrize("kinds", NESTS.values(), ids=NESTS.keys())
def test_rules_in_force_change_no_result(kinds: tuple[str, ...], full: bool) -> None:
    check_many(kinds, 1000 if full else 20)


@pytest.mark.sweep
def test_programs_follow_many_rules() -> None:
    """Otherwise the programs would test torch's derivatives."""
    found: set[str] = set()

    @hypothesis.settings(max_examples=100, derandomize=True, deadline=None)
    @hypothesis.given(cases(1, ("tl",), ("grad",)))
    def run(case: Case) -> None:
        with COTANGENTS.followed(found):
            case.run(tl=tl)

    run()
    assert len(found) >= 25


def test_switched_off_puts_rules_back_after_an_error() -> None:
    def reached() -> set[str]:
        found: set[str] = set()
        with COTANGENTS.followed(found):
            tl.grad(torch.sin)(torch.ones(()))
        return found

    with (
        pytest.raises(ZeroDivisionError),
        COTANGENTS.switched_off(["aten::sin", "aten::mul.Tensor"]),
    ):
        assert reached() == set()
        raise ZeroDivisionError
    assert reached() == {"aten::sin"}
