"""report().show(): the captured graph as Python after each stage."""

import gc
import weakref

import pytest
import torch

import torchlayers as tl


def f(x):
    y = x.T.T.sin()
    return (y * y).sum()


def test_each_stage_that_changed_the_graph_is_shown_with_the_users_lines():
    compiled = tl.compile(f, backend="replay")
    compiled(torch.ones(2, 3))
    line = f.__code__.co_firstlineno
    shown = compiled.report().show()
    captured, *middle, handed = shown.split("\n\n")
    expected = f"""\
-- captured
def forward(x):
    # test_show.py:{line + 1}, `y = x.T.T.sin()`"""
    assert captured.startswith(expected)
    assert f"    # test_show.py:{line + 2}, `return (y * y).sum()`\n    mul = " in captured
    assert captured.count("aten.permute") == 2
    assert any(stage.startswith("-- merge_views\n") for stage in middle)
    assert handed.startswith("-- handed to the backend\n")
    assert "permute" not in handed


def test_a_differentiated_function_shows_its_reverse_pass():
    compiled = tl.compile(f, backend="replay")
    x = torch.ones(2, 3, requires_grad=True)
    compiled(x)
    assert "cotangent_0" in compiled.report().show()
    assert "aten.cos" in compiled.report().show()


def test_any_signature_can_be_shown():
    compiled = tl.compile(lambda x, n: x * n, static_argnums=1, backend="replay")
    compiled(torch.ones(2), 3)
    compiled(torch.ones(2), 4)
    report = compiled.report()
    assert "(x, 3)" in report.show(0) or ", 3)" in report.show(0)
    assert ", 4)" in report.show()
    with pytest.raises(tl.errors.TransformError, match="2 captured signatures"):
        report.show(2)
    with pytest.raises(tl.errors.TransformError, match="0 captured signatures"):
        tl.compile(f).report().show()


@pytest.mark.sweep
def test_it_changes_no_python_state_and_keeps_no_tensor():
    calls = []

    def counted(x):
        calls.append(1)
        return x.sin()

    compiled = tl.compile(counted, backend="replay")
    x = torch.ones(2)
    compiled(x)
    before = len(calls)
    report = compiled.report()
    report.show()
    assert len(calls) == before
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None
    assert "aten.sin" in report.show()


def test_symbolic_sizes_are_shown():
    compiled = tl.compile(lambda x: x.sin() * x.shape[0], backend="replay", dynamic=True)
    compiled(torch.ones(2, 3))
    compiled(torch.ones(3, 3))
    shown = compiled.report().show()
    assert "with symbolic sizes" in shown
    assert "aten.sin" in shown


def test_reads_and_writes_are_shown():
    log = []

    def storing(x):
        if x.sum() > 0:
            x = x.sin()
        log.append(x)
        return x

    compiled = tl.compile(storing, backend="replay")
    compiled(torch.ones(2))
    shown = compiled.report().show()
    assert shown.startswith("-- reads and writes\n2 parts, split where values are read:")
    assert "`if x.sum() > 0:`. read True" in shown
    assert "each call writes log[...]" in shown
    assert "-- part 0, handed to the backend" in shown
