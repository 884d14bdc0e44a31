"""docs/operators.md says what the rules are now."""

import pytest
import torch

from tests.rules import operators_page as page


@pytest.fixture(scope="module")
def written():
    return page.written_rows()


def test_the_page_has_the_rows_of_today(written):
    """Of the operators that this torch has. Another torch may batch more or fewer by itself."""
    columns = 8 if torch.__version__.startswith("2.13.") else 2

    def compared(row):
        return row.split(" | ")[:columns]

    stale = [
        row
        for name, row in page.rows().items()
        if name in written and compared(written[name]) != compared(row)
    ]
    assert not stale, "python -m tests.rules.operators_page writes the table, with torch 2.13"


def test_the_page_has_every_operator(written):
    """Those that only another torch has may be there as well."""
    assert not page.operators().keys() - written.keys()


def test_forms_are_in_the_words_of_the_page():
    add, mm, tanh, maximum = (page.operators()[n] for n in ("add.Tensor", "mm", "tanh", "max.dim"))
    assert page.form(add) == "elementwise in self, other; linear"
    assert page.form(mm) == "linear in self, mat2; contracts self, mat2: ik,kj->ij"
    assert page.form(tanh) == "elementwise in self; y' = 1 - y²"
    assert page.form(maximum) == "piecewise linear; selects; reduces lines"
