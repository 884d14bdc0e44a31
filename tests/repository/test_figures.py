"""Figures in the text of pages are those of the tables on them."""

import math
import re

import pytest

from benchmarks import headline, page
from benchmarks.headline import PAGES

NUMBER = re.compile(r"[\d.,]+")


def rows(name, source):
    """The first table between the markers of that name: a dict for each row, by the header."""
    header, *lines = headline.cells(name, source)
    return [dict(zip(header, line, strict=True)) for line in lines]


def number(cell):
    found = NUMBER.match(cell)
    return float(found.group().replace(",", "")) if found else None


def ratios(table, of, over):
    """The quotients of two columns, in the rows that have both."""
    pairs = ((number(row[of]), number(row[over])) for row in table)
    return [a / b for a, b in pairs if a is not None and b is not None]


def geometric_mean(values):
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def text_of(source):
    text = (page.DOCS / source).read_text("utf-8")
    return re.sub(
        r"\s+", " ", re.sub(r"<!-- (.+?): begin -->.*?<!-- \1: end -->", "", text, flags=re.S)
    )


def small_workloads():
    each = ratios(rows("workloads, one", "workloads.md"), "torchlayers compiled, µs", "JAX jit, µs")
    within = sum(ratio <= 0.9 for ratio in each)
    yield f"at most 0.9 of JAX jit's time in {within} of the {len(each)}, and {max(each):.2f} in"
    yield f"{geometric_mean(each):.2f} in the geometric mean"


def real_workloads():
    table = rows("real size, one", "workloads.md")
    each = ratios(table, "torchlayers compiled, ms", "torch.func, ms")
    yield f"compiled code takes {geometric_mean(each):.2f} of torch.func's time"
    missed = sum(any("missed" in cell for cell in row.values()) for row in table)
    yield f"misses the bar in {['no', 'one', 'two', 'three', 'four'][missed]} row"


def forward_mode():
    table = {row["what"]: row["ratio"] for row in rows("forward mode", "benchmarks.md")}
    plain = table["two plain operators, survey: geometric mean"]
    yield f"two plain ones come to {plain} of torch.func"
    yield f"The mean is {table['jvp, survey: geometric mean']}"
    yield f"off it is {table['jvp, survey, the call taken off: geometric mean']}:"


@pytest.mark.parametrize(
    ("statements", "source"),
    [
        (small_workloads, "workloads.md"),
        (real_workloads, "workloads.md"),
        (forward_mode, "benchmarks.md"),
    ],
)
def test_text_states_what_the_tables_say(statements, source):
    text = text_of(source)
    for statement in statements():
        assert statement in text


@pytest.mark.parametrize("name", PAGES)
def test_figures_of_the_first_pages_are_those_of_the_tables(name):
    """python -m benchmarks.headline writes them."""
    text = (page.DOCS / name).read_text("utf-8").partition(f"<!-- {headline.NAME}: begin -->\n")[2]
    written = text.partition(f"\n<!-- {headline.NAME}: end -->")[0]
    assert written == headline.block("docs/" if "README" in name else "")


@pytest.mark.parametrize("name", PAGES)
def test_the_first_pages_have_no_other_figures(name):
    """A time or a ratio outside of the copied rows might be out of date."""
    text = text_of(name)
    assert re.findall(r"\b\d[\d,.]* ?(?:µs|ms|%|times)|\b0\.\d+", text) == []
