"""docs/operators.md says what the rules are now."""

import pytest

from tests.rules import operators_page as page


@pytest.fixture(scope="module")
def written():
    return page.written_rows()


def test_the_page_has_the_rows_of_today(written):
    """Of the operators that this torch has."""
    rows = page.rows()
    stale = [row for name, row in rows.items() if written.get(name) not in (row, None)]
    assert not stale, "python -m tests.rules.operators_page writes the table"


def test_the_page_has_every_operator(written):
    """Those that only another torch has may be there as well."""
    assert not page.operators().keys() - written.keys()


def test_forms_are_in_the_words_of_the_page():
    add, mm, tanh, maximum = (page.operators()[n] for n in ("add.Tensor", "mm", "tanh", "max.dim"))
    assert page.form(add) == "elementwise in self, other; linear"
    assert page.form(mm) == "linear in self, mat2; contracts self, mat2: ik,kj->ij"
    assert page.form(tanh) == "elementwise in self; y' = 1 - y²"
    assert page.form(maximum) == "piecewise linear; selects; reduces lines"
