"""The page of a trace, in a real browser."""

import re
import shutil
import subprocess

import pytest
import torch

import torchlayers as tl

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium, which is not installed (apt install chromium)"
)


def shown(page, *, script=""):
    """The page's document after its scripts, and then this one, have run; and the console."""
    page.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    run = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]


def page_of(path, call):
    tl.trace(call)(torch.ones(3, 2)).to_html(path / "trace.html")
    return path / "trace.html"


def f(x):
    return (x.sin() * x).sum()


@needs_browser
def test_the_page_shows_calls_and_summary(tmp_path):
    document, console = shown(page_of(tmp_path, tl.vmap(tl.grad(f))))
    assert console == []
    assert "vmap (level 1) of 3 samples" in document
    assert re.search(r"<td>aten::sin</td><td>grad \(level 2\)</td>", document)


@needs_browser
def test_search_finds_calls_and_a_click_shows_their_way(tmp_path):
    script = """
        find("search").value = "SIN("; show();
        document.body.dataset.hits = hits.size;
        find("way").querySelector("button").click();
        document.body.dataset.chosen = calls[chosen].text;
        document.body.dataset.way = find("way").children.length;
    """
    document, console = shown(page_of(tmp_path, tl.vmap(tl.grad(f))), script=script)
    assert console == []
    assert 'data-hits="3"' in document
    assert 'data-chosen="sin(f32[2]) -&gt; f32[2]  grad (level 2), rule"' in document
    assert 'data-way="5"' in document  # two layers above, and three calls of it


@needs_browser
def test_an_empty_trace_is_a_page_too(tmp_path):
    with tl.trace() as trace:
        pass
    trace.to_html(tmp_path / "trace.html")
    document, console = shown(tmp_path / "trace.html")
    assert console == []
    assert "0 calls in" in document


@needs_browser
def test_a_click_on_a_compiled_function_shows_its_graph(tmp_path):
    script = """
        choose(calls.findIndex(call => call.kind === "compiled"));
        const stages = find("stages").children;
        document.body.dataset.first = find("code").textContent.includes("aten.t.default");
        stages[stages.length - 1].click();
        document.body.dataset.last = find("code").textContent.includes("aten.t.default");
    """
    page = page_of(tmp_path, tl.compile(lambda x: x.t().t().sin(), backend="replay"))
    document, console = shown(page, script=script)
    assert console == []
    assert 'data-first="true"' in document
    assert 'data-last="false"' in document
    assert "torch.ops.aten.sin.default" in document
