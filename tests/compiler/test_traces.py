"""Compiled functions in traces: calls, what ran them, their kernels and their graphs."""

import json
import re

import pytest
import torch

import torchlayers as tl

X = torch.arange(6.0).reshape(3, 2)


def f(x):
    return x.T.T.sin() * 2


def compiled_calls(trace):
    return [call for call in trace if call.kind == "compiled"]


def test_a_call_says_whether_it_was_captured_and_what_ran_it():
    compiled = tl.compile(f, backend="replay")
    with tl.trace() as trace:
        compiled(X)
        compiled(X)
    first, second = compiled_calls(trace)
    assert (first.name, first.how, first.is_captured) == ("f", "replayed", True)
    assert (second.how, second.is_captured) == ("replayed", False)
    assert first.code is second.code
    assert [call.name for call in second.children] == ["aten::sin", "aten::mul.Tensor"]
    assert all(call.is_kernel for call in second.children)
    assert "f(f32[3, 2])  compiled function, captured, replayed" in str(trace)


def test_a_second_capture_says_why():
    compiled = tl.compile(f, backend="replay")
    with tl.trace() as trace:
        compiled(X)
        compiled(X[:2])
    again = compiled_calls(trace)[1]
    assert again.code.why == compiled.report().signatures[1].why
    assert f"captured again because {again.code.why}" in str(trace)
    assert [row.notes for row in trace.summary().rows if row.operator == "f"] == ["2 captured"]


def test_a_capture_with_symbolic_sizes_is_one():
    compiled = tl.compile(f, backend="replay", dynamic=True)
    with tl.trace() as trace:
        for count in (2, 3, 4, 5):  # the graph for any size is compared with one for size 4
            compiled(torch.ones(count, 2))
    assert [call.is_captured for call in compiled_calls(trace)] == [True, True, True, False]


def test_code_of_inductor_shows_its_kernels():
    compiled = tl.compile(lambda x: (x.sin() @ x.T).cos(), wait=True)
    compiled(X)
    trace = tl.trace(compiled)(X)
    (call,) = compiled_calls(trace)
    assert call.how == "compiled"
    assert all(part.is_kernel for part in call.children)
    assert call.children[0].name.startswith("inductor::")
    assert sum(part.nanoseconds for part in call.children) <= call.nanoseconds
    torch.testing.assert_close(trace.result, (X.sin() @ X.T).cos())


def test_inside_a_transform_its_operators_arrive_at_the_transform():
    compiled = tl.compile(f, backend="replay")
    trace = tl.trace(tl.vmap(compiled))(X[..., None])
    (call,) = compiled_calls(trace)
    assert (call.how, call.code) == ("inlined", None)
    assert {part.layer for part in call.children if part.name == "aten::sin"} == {"vmap"}


def test_a_backward_is_a_call_of_its_own():
    compiled = tl.compile(lambda x: x.sin().sum(), backend="replay")
    x = X.clone().requires_grad_()
    compiled(x).backward()  # the first gradients are compared
    with tl.trace() as trace:
        compiled(x).backward()
    forward, backward = compiled_calls(trace)
    assert backward.name == f"{forward.name}'s backward"
    assert (forward.how, backward.how) == ("replayed", "replayed")
    assert "cos" in backward.code.stages()[0][1]


def test_an_error_ends_the_call():
    def asks(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(tl.errors.DataDependentError), tl.trace() as trace:
        tl.compile(asks, fullgraph=True)(X)
    (call,) = compiled_calls(trace)
    assert call.has_raised
    assert call.is_captured
    assert "asks()  compiled function, captured, raised" in str(trace)


def test_compiled_functions_have_their_lane(tmp_path):
    tl.trace(tl.compile(f, backend="replay"))(X).to_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"compiled", "kernels"} <= {e["args"].get("name") for e in events}


def test_the_page_has_the_graph_after_each_stage(tmp_path):
    trace = tl.trace(tl.compile(f, backend="replay"))(X)
    trace.to_html(tmp_path / "trace.html")
    data = json.loads(
        re.search(r"const data = (.*);", (tmp_path / "trace.html").read_text()).group(1)
    )
    (graph,) = data["graphs"]
    assert graph["title"] == "f(f32[3, 2])"
    names = [name for name, _ in graph["stages"]]
    assert names[0] == "captured"
    assert names[-1] == "handed to the backend"
    assert "aten.permute." in graph["stages"][0][1]
    assert "aten.permute." not in graph["stages"][-1][1]
    assert f"test_traces.py:{f.__code__.co_firstlineno + 1}" in graph["stages"][0][1]
    graphs = [call["graph"] for call in data["calls"] if call["kind"] == "compiled"]
    assert graphs == [0]


def test_a_graph_that_cannot_be_captured_again_says_why(tmp_path):
    works = [True]

    def fickle(x):
        if not works:
            raise ValueError("not today")
        return x.sin()

    trace = tl.trace(tl.compile(fickle, backend="replay", guards=False))(X)
    works.clear()
    trace.to_html(tmp_path / "trace.html")
    assert "not today" in (tmp_path / "trace.html").read_text()


def test_calls_are_ranges_of_the_profiler():
    compiled = tl.compile(f, backend="replay")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(X)
    assert "torchlayers::compiled f" in {event.name for event in profile.events()}


def test_the_page_has_the_parts_of_a_function_that_reads_values(tmp_path):
    log = []

    def storing(x):
        if x.sum() > 0:
            x = x.sin()
        log.append(x)
        return x

    trace = tl.trace(tl.compile(storing, backend="replay"))(X)
    trace.to_html(tmp_path / "trace.html")
    found = re.search(r"const data = (.*);", (tmp_path / "trace.html").read_text()).group(1)
    stages = [name for name, _ in json.loads(found)["graphs"][0]["stages"]]
    assert stages == ["reads and writes", "part 0, handed to the backend", "end 0, captured"]
