"""What notebooks show of traces, summaries and reports."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest
import torch

import torchlayers as tl
from torchlayers.core.html_table import html_table
from torchlayers.core.trace import recording


def cells(html):
    """The tables' cells, a list for each row; the HTML has to be well-formed."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    return [[cell.text or "" for cell in row] for row in root.iter("tr")]


def test_a_table_escapes_its_cells_and_aligns_columns():
    html = html_table([("a<b", "n"), ("x & y", "1")], right=(1,))
    assert cells(html) == [["a<b", "n"], ["x & y", "1"]]
    assert html.count("text-align: right") == 2 and "a&lt;b" in html


@pytest.fixture
def traced():
    return tl.trace(tl.vmap(lambda x: (x < 2).sum()))(torch.ones(3, 2))


def test_a_trace_is_its_page(traced, tmp_path):
    traced.to_html(tmp_path / "trace.html")
    html = traced._repr_html_()
    (page,) = re.findall(r'^<iframe srcdoc="([^"]*)" width', html)
    assert unescape(page) == (tmp_path / "trace.html").read_text("utf-8")


def test_a_long_trace_is_its_summary(traced, monkeypatch):
    monkeypatch.setattr(recording, "MOST_CALLS_OF_NOTEBOOK", 1)
    html = traced._repr_html_()
    assert html.startswith(f"<p>{len(traced)} calls; to_html(path) writes")
    assert html.endswith(traced.summary()._repr_html_())


def test_a_summary_has_the_rows_that_it_prints(traced):
    summary = traced.summary()
    header, *rows = cells(summary._repr_html_())
    assert header[:3] == ["operator", "at", "calls"]
    assert [row[0] for row in rows] == [row.operator for row in summary.rows]
    assert str(summary).splitlines()[0] in summary._repr_html_()


def test_reports_are_tables():
    compiled = tl.compile(torch.sin, backend="replay")
    compiled(torch.ones(2))
    (_, row) = cells(compiled.report()._repr_html_())
    assert row[:4] == ["0", "f32[2]", "replay", "1"]
    jacobian = tl.jacobian(torch.sin)
    jacobian(torch.ones(3))
    header, *modes = cells(jacobian.report()._repr_html_())
    assert header[1] == "products" and [row[:2] for row in modes] == [
        ["forward", "3"],
        ["reverse", "3"],
    ]
    assert cells(tl.jacobian(torch.sin, mode="sparse").report()._repr_html_()) == []
