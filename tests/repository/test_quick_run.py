"""The draw of the quick run: what is run on which day."""

import pytest

from tests.support import draw

DAYS = 400


@pytest.mark.parametrize("one_in", [4, 16])
def test_each_case_is_drawn_on_as_many_days(monkeypatch, one_in):
    days = dict.fromkeys(range(2 * one_in + 3), 0)
    for day in range(DAYS):
        monkeypatch.setenv("TEST_SEED", str(day))
        drawn = [case for case in days if draw.is_drawn("a test", case, one_in)]
        assert len({case // one_in for case in drawn}) == len(drawn)  # one of each row, or none
        for case in drawn:
            days[case] += 1
    mean = DAYS / one_in
    assert all(mean / 2 < number < mean * 2 for number in days.values())


def is_chosen(request, case, one_in):
    test = request.node.nodeid.partition("[")[0]
    given = request.config.args
    is_named = test in given or request.node.nodeid in given
    return request.config.getoption("--full") or is_named or draw.is_drawn(test, case, one_in)


@pytest.mark.sweep
def test_a_single_case_is_run_on_its_days(request):
    assert is_chosen(request, 0, 4)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("case", range(3))
def test_few_cases_are_run_on_their_days(request, case):
    assert is_chosen(request, case, 16)
