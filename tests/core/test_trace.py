"""The trace: a record of what the layers did."""

import json
import re
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import torchlayers as tl
from tests.support.traced_steps import traced_steps
from torchlayers import _C


def f(x):
    return (x.sin() * x).sum()


def test_the_tree_follows_each_operator_down_the_stack():
    expected = """\
        vmap (level 1) of 3 samples
          grad (level 2)
            sin(f32[2]) -> f32[2]  grad (level 2), rule
              sin(f32[2]@0) -> f32[2]@0  vmap (level 1), typed kernel
                sin(f32[3, 2]) -> f32[3, 2]  kernel
            mul(f32[2], f32[2]) -> f32[2]  grad (level 2), rule
              mul(f32[2]@0, f32[2]@0) -> f32[2]@0  vmap (level 1), typed kernel
                mul(f32[3, 2], f32[3, 2]) -> f32[3, 2]  kernel
            sum(f32[2]) -> f32[]  grad (level 2), rule
              sum(f32[2]@0) -> f32[]@0  vmap (level 1), rule
                sum(f32[3, 2]) -> f32[3]  kernel
            backward pass of grad (level 2), by torchlayers
            ones_like(f32[]@0) -> f32[]@0  vmap (level 1), rule
              ones_like(f32[3]) -> f32[3]  kernel"""
    trace = tl.trace(tl.vmap(tl.grad(f)))(torch.ones(3, 2))
    assert trace.tree(lines=False).splitlines()[:14] == textwrap.dedent(expected).splitlines()
    torch.testing.assert_close(trace.result, tl.vmap(tl.grad(f))(torch.ones(3, 2)))


def test_calls_from_the_program_say_its_line():
    trace = tl.trace(tl.vmap(f))(torch.ones(3, 2))
    (layer,) = trace.calls
    sin = layer.children[0]
    line = f.__code__.co_firstlineno + 1
    assert sin.source == (__file__, line)
    assert f"# test_trace.py:{line}" in str(trace)
    assert sin.children[0].source is None  # a layer called it


def test_times_of_parts_add_up():
    trace = tl.trace(tl.vmap(tl.grad(f)))(torch.ones(3, 2))
    (outermost,) = trace.calls
    assert sum(call.own_nanoseconds for call in trace) == outermost.nanoseconds
    assert 0 < outermost.nanoseconds <= trace.seconds * 1e9
    for call in trace:
        assert all(call.begin <= child.begin <= child.end <= call.end for child in call.children)


def test_operators_outside_transforms_are_kernels():
    trace = tl.trace(f)(torch.ones(2))
    assert [call.place for call in trace] == ["kernel"] * 3


def test_the_reverse_pass_runs_below_its_layer():
    trace = tl.trace(tl.vmap(tl.grad(torch.sin)))(torch.ones(2))
    assert {call.layer for call in trace if call.name == "aten::cos"} == {"vmap", None}


def test_a_backward_of_autograds_own_is_not_recorded_at_its_level():
    with traced_steps() as steps:
        tl.grad(lambda x: (x * 1).sqrt_().sum())(torch.ones(2, 2))
    assert [step.step for step in steps if step.op == "aten::div.Tensor"] == [
        "process",
        "send_down",
    ]


def test_layers_in_python_and_of_torch_func_are_there():
    class Doubling(tl.Layer):
        pass

    @Doubling.rule("any")
    def run(layer, op, x):
        return layer.lift(op(x.value) * 2)

    def call(x):
        with Doubling() as layer:
            return torch.sin(layer.lift(x)).shape

    trace = tl.trace(call)(torch.ones(2))
    assert any(line.endswith("doubling (level 1), rule") for line in plain(trace))
    trace = tl.trace(torch.func.vmap(tl.vmap(torch.sin)))(torch.ones(2, 3))
    assert any("vmap (level 2)" in line for line in plain(trace))


def plain(trace):
    return [line.strip() for line in trace.tree(lines=False).splitlines()]


def test_nothing_is_recorded_outside_the_block():
    with tl.trace() as trace:
        pass
    tl.grad(torch.sin)(torch.tensor(1.0))
    assert list(trace) == []
    assert str(trace) == ""


def test_traces_nest():
    with tl.trace() as outer:
        torch.ones(1)
        with tl.trace() as inner:
            tl.vmap(torch.neg)(torch.ones(2))
        torch.ones(1)
    assert len(inner) == 4
    assert len(outer) == 6
    assert [call.name for call in outer.calls[1].walk()] == ["aten::ones"]
    assert plain(inner) == plain(outer)[1:-1]


def test_traces_may_overlap():
    first, second = tl.trace(), tl.trace()
    with first:
        torch.ones(1)
        second.__enter__()
        torch.zeros(1)
    torch.ones(1)
    second.__exit__(None, None, None)
    assert [call.name for call in first] == ["aten::ones", "aten::zeros"]
    assert [call.name for call in second] == ["aten::zeros", "aten::ones"]


def test_a_trace_that_begins_and_ends_inside_a_transform():
    inside = []

    def g(x):
        with tl.trace() as trace:
            y = x.sin()
        inside.append(trace)
        return y.cos()

    result = tl.vmap(g)(torch.ones(2))
    assert [call.name for call in inside[0]] == ["aten::sin", "aten::sin"]
    torch.testing.assert_close(result, torch.ones(2).sin().cos())

    def opened(x):
        trace.__enter__()
        return x.sin()

    trace = tl.trace()
    tl.vmap(opened)(torch.ones(2))
    torch.neg(torch.ones(1))
    trace.__exit__(None, None, None)
    assert [call.name for call in trace.calls] == ["aten::sin", "aten::ones", "aten::neg"]


def test_an_exception_ends_a_trace_and_is_marked():
    with pytest.raises(RuntimeError, match="size"), tl.trace() as trace:
        tl.vmap(lambda x: x + torch.ones(4))(torch.ones(2, 3))
    assert "raised" in str(trace)
    assert tl.current_stack() == ()
    assert not torch._C._autograd._profiler_enabled()
    with tl.trace() as after:
        torch.ones(1)
    assert len(after) == 1


def test_all_threads_are_recorded():
    def work():
        tl.vmap(torch.sin)(torch.ones(2))

    with tl.trace() as trace:
        work()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    layers = [call for call in trace.calls if call.kind == "layer"]
    assert len({call.thread for call in layers}) == 3
    assert all(len(list(call.walk())) == 3 for call in layers)
    assert str(trace).count("(thread ") == len(trace.calls)


def test_only_the_last_calls_are_kept():
    with tl.trace(limit=3) as trace:
        for _ in range(5):
            torch.sin(torch.tensor(1.0))
    assert len(trace) == 3
    assert trace.dropped > 0
    assert str(trace).startswith(f"({trace.dropped} earlier calls were dropped)")
    with pytest.raises(RuntimeError, match=r"limit .* at least 1, not 0"):
        tl.trace(limit=0).__enter__()


def test_a_trace_is_recorded_once_at_a_time():
    with tl.trace() as trace, pytest.raises(RuntimeError, match="being recorded already"):
        trace.__enter__()


def test_only_functions_can_be_traced():
    with pytest.raises(tl.errors.TransformError, match="must be a function, but is of type int"):
        tl.trace(3)


def test_ranges_of_the_profiler_are_there():
    with tl.trace() as trace, torch.profiler.record_function("loading"):
        torch.ones(2)
    assert plain(trace) == ["loading", "ones() -> f32[2]  kernel"]


def test_transforms_are_ranges_of_the_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tl.vmap(tl.grad(torch.sin))(torch.ones(2))
    names = {event.name for event in profile.events()}
    assert {"torchlayers::vmap (level 1)", "torchlayers::grad (level 2)"} <= names


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_summary_marks_loops_and_copies():
    trace = tl.trace(tl.vmap(lambda x: x.renorm(2, 0, 1.0)))(torch.ones(5, 2, 2))
    notes = {(row.operator, row.place): row.notes for row in trace.summary().rows if row.notes}
    assert notes == {("aten::renorm", "vmap (level 1)"): "loops: 5 calls for 1"}
    assert "loops over 5 samples" in str(trace)
    (loop,) = trace.summary().loops
    line = test_the_summary_marks_loops_and_copies.__code__.co_firstlineno + 2
    assert (loop.operator, loop.line, loop.calls) == ("aten::renorm", f"test_trace.py:{line}", 5)
    said = f"aten::renorm runs one sample at a time (test_trace.py:{line}): 5 calls, "
    assert str(trace.summary()).splitlines()[1].startswith(said)

    def added(x):
        return torch.zeros(3).add_(x)

    trace = tl.trace(tl.vmap(added))(torch.ones(4, 3))
    assert "1 copies made by layers" in str(trace.summary())
    assert not any(call.is_copy for call in tl.trace(lambda x: x.T.reshape(6))(torch.ones(2, 3)))


def test_the_summary_explains_where_the_time_went():
    summary = tl.trace(tl.vmap(tl.grad(f)))(torch.ones(3, 2)).summary()
    total = summary.kernels + summary.layers + summary.python
    assert total == pytest.approx(sum(row.own for row in summary.rows) + summary.python)
    assert summary.explained == pytest.approx(total / summary.seconds)
    sin = {row.place: row for row in summary.rows if row.operator == "aten::sin"}
    assert sin.keys() == {"grad (level 2)", "vmap (level 1)", "kernel"}
    assert sin["grad (level 2)"].below == pytest.approx(
        sin["vmap (level 1)"].own + sin["vmap (level 1)"].below
    )


def test_chrome_traces_have_a_lane_for_each_layer(tmp_path):
    trace = tl.trace(tl.vmap(tl.grad(f)))(torch.ones(3, 2))
    trace.to_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    calls = [e for e in events if e["ph"] == "X"]
    assert len(calls) == len(trace)
    assert set(lanes.values()) == {"level 1", "level 2", "kernels"}
    assert all(lanes[e["tid"]] == e["args"]["lane"] for e in calls)


def test_chrome_traces_line_up_with_the_profilers(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trace = tl.trace(tl.vmap(f))(torch.ones(3, 2))
    profile.export_chrome_trace(str(tmp_path / "profile.json"))
    trace.to_chrome(tmp_path / "both.json", profile=tmp_path / "profile.json")
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    ours, theirs = (
        [
            e
            for e in events
            if e.get("name") == "aten::sin" and (e["pid"] == "torchlayers") == is_ours
        ]
        for is_ours in (True, False)
    )
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):  # in microseconds; a machine may pause
        assert abs(one["ts"] - other["ts"]) < 1_000_000


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}"])
def test_only_profiles_can_be_added_to(tmp_path, content):
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(ValueError, match="export_chrome_trace"):
        tl.trace(f)(torch.ones(2)).to_chrome(tmp_path / "t.json", profile=tmp_path / "profile.json")


def test_the_page_needs_no_network_and_holds_any_name(tmp_path):
    with tl.trace() as trace, torch.profiler.record_function("</script><b>"):
        tl.vmap(f)(torch.ones(3, 2))
    trace.to_html(tmp_path / "trace.html")
    page = (tmp_path / "trace.html").read_text()
    assert "http" not in page
    assert page.count("</script>") == 1
    data = json.loads(re.search(r"const data = (.*);", page).group(1))
    assert data["calls"][0]["name"] == "</script><b>"
    assert data["lanes"] == ["ranges", "level 1", "kernels"]


def printed(how_much, function):
    """The lines that a process prints with TORCHLAYERS_TRACE in its environment."""
    program = f"import torch, torchlayers as tl; {function}(torch.ones(2))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"TORCHLAYERS_TRACE": how_much, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr.splitlines()


@pytest.mark.full  # a process each
@pytest.mark.parametrize("nothing", ["", "0"])
def test_environment_variable_may_disable_tracing(nothing):
    assert printed(nothing, "tl.vmap(torch.neg)") == []


@pytest.mark.full  # a process; its state is printed below
def test_the_environment_variable_prints_the_steps():
    assert printed("1", "tl.vmap(torch.neg)") == [
        "vmap (level 1) typed aten::neg",
        "vmap (level 1) send_down aten::neg",
    ]


@pytest.mark.sweep
def test_the_environment_variable_prints_the_stack_and_the_keys_at_front_and_back():
    # In place it has no rule, so autograd's kernel records it and sends it to the back key.
    lines = printed("2", "tl.grad(lambda x: (x.view(1, 2) * 1).sqrt_().sum())")
    assert "grad (level 1) send_down aten::sqrt_" in lines
    at = {where: lines.index(f"{where} aten::sqrt_ stack [1:grad]") for where in ("front", "back")}
    assert at["front"] < at["back"]
    keys = {
        (where, which): next(
            line for line in lines[place:] if line.startswith(f"  {which} DispatchKeySet(")
        )
        for where, place in at.items()
        for which in ("included", "excluded")
    }
    assert _C.FRONT_KEY in keys["front", "included"]
    assert _C.FRONT_KEY not in keys["back", "included"]
    assert _C.BACK_KEY in keys["back", "included"]
    assert "FuncTorchBatched" in keys["back", "excluded"]
    assert "FuncTorchBatched" not in keys["front", "excluded"]


def test_a_call_of_a_custom_operator_is_recorded_once():
    @torch.library.custom_op("trace_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with tl.trace() as trace:
        tl.grad(lambda x: (twice(x.detach()) * x).sum())(torch.ones(3))
    (call,) = [call for call in trace.calls[-1].children if call.name == "trace_test::twice"]
    assert (call.layer, call.level) == ("grad", 1)
    assert call.inputs[0].shape == call.outputs[0].shape == (3,)
    assert call.called_by_user.line.startswith("test_trace.py:")
