"""debug.print and debug.breakpoint: inside transforms, control flow and compiled functions."""

import io
import sys

import pytest
import torch
import torch.func

import torchlayers as tl
from torchlayers import debug
from torchlayers.errors import TransformError

X = torch.arange(6.0).reshape(3, 2)


def show(x):
    debug.print("{}", x)
    return x.sin().sum()


@pytest.fixture
def lines(capsys):
    return lambda: capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("t", [tl, torch.func])
def test_each_sample_is_printed_with_its_index(t, lines):
    t.vmap(t.grad(show))(X)
    assert lines() == ["sample 0: [0., 1.]", "sample 1: [2., 3.]", "sample 2: [4., 5.]"]
    t.vmap(t.vmap(show), in_dims=1)(X)
    assert lines()[:4] == [
        "sample (0, 0): 0.",
        "sample (0, 1): 2.",
        "sample (0, 2): 4.",
        "sample (1, 0): 1.",
    ]
    t.grad(show)(X[1])
    show(X[1])
    assert lines() == ["[2., 3.]", "[2., 3.]"]


@pytest.mark.parametrize(
    ("sample", "printed"),
    [
        ("batch", ["[[0., 2., 4.],", " [1., 3., 5.]]"]),
        (1, ["[1., 3., 5.]"]),
        ((1, 2), ["5."]),
        (7, []),
    ],
)
def test_one_sample_or_the_batch(sample, printed, lines):
    tl.vmap(tl.vmap(lambda x: debug.print("{}", x, sample=sample) or x), in_dims=1)(X)
    assert lines() == printed


def test_what_all_samples_share_is_printed_once(lines):
    tl.vmap(lambda x: debug.print("{}", X[0]) or x)(X)
    assert lines() == ["[0., 1.]"]


@pytest.mark.parametrize(
    ("fmt", "given", "named", "printed"),
    [
        ("{} {}", (torch.tensor(0.5), 3), {}, "0.5000 3"),
        ("{1} {0}", (torch.tensor(1), "a"), {}, "a 1"),
        ("{x:.1f}", (), {"x": torch.tensor([0.25, 1.0])}, "[0.2, 1.0]"),
        ("{x:>{width}}", (), {"x": 5, "width": 3}, "  5"),
        ("{x!r}", (), {"x": torch.tensor(True)}, "tensor(True)"),
        ("{x.shape} {{}}", (), {"x": X}, "torch.Size([3, 2]) {}"),
        ("{x[1]}", (), {"x": X}, "[2., 3.]"),
        ("{}", ({"{a}": torch.tensor(1), "b": 2},), {}, "{'{a}': tensor(1), 'b': 2}"),
        ("{}", (torch.tensor([1.5], dtype=torch.float64),), {}, "[1.5000]"),
        ("nothing", (), {}, "nothing"),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_fields_are_those_of_str_format(fmt, given, named, printed, compiled, lines):
    def f(x):
        debug.print(fmt, *given, **named)
        return x

    (tl.compile(f) if compiled else f)(X)
    assert lines() == [printed]


def test_a_compiled_function_prints_at_each_call(lines):
    compiled = tl.compile(tl.vmap(tl.grad(show)), wait=True)
    for shift in (0, 10):
        compiled(X[:1] + shift)
        compiled(X[:1] + shift)
    assert lines() == ["sample 0: [0., 1.]"] * 2 + ["sample 0: [10., 11.]"] * 2
    (entry,) = compiled.report().signatures
    assert entry.how == "inductor"


@pytest.mark.sweep
def test_compiled_code_prints_in_the_order_of_the_program(lines):
    def f(x):
        debug.print("last in use: {}", x[0])
        y = x.sin() @ x.T.cos()
        debug.print("late: {:.2f}", y.sum())
        debug.print("early: {:.1f}", x.sum())
        z = y.exp()
        debug.print("no value")
        debug.print("z: {:.2f}, y: {:.2f}", z[0, 0], y[0, 0])
        return x * 2

    compiled = tl.compile(f, wait=True)
    for x in (X, X, X + 1):
        f(x)
        printed = lines()
        assert len(printed) == 5
        torch.testing.assert_close(compiled(x), x * 2)
        assert lines() == printed
    (entry,) = compiled.report().signatures
    assert entry.how == "inductor"


def test_compiled_code_that_prints_is_made_in_the_background(lines):
    compiled = tl.compile(lambda x: debug.print("{}", x.sum()) or x * 3, wait=False)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X * 3)
        assert lines() == ["15."]
        assert compiled.wait()
    (entry,) = compiled.report().signatures
    assert entry.how == "inductor"


def test_a_loop_that_prints_is_replayed(lines):
    compiled = tl.compile(while_loop, wait=True)
    compiled(X)
    assert lines() == ["i=0", "i=1"]
    (entry,) = compiled.report().signatures
    assert entry.how == "replay (torchlayers.debug or io_callback runs in a branch or a loop of it)"


def test_a_compiled_function_that_autograd_records_prints_once(lines):
    compiled = tl.compile(show)
    x = X[0].clone().requires_grad_()
    with pytest.warns(UserWarning, match="torchlayers.debug or io_callback runs in it"):
        compiled(x).backward()
    compiled(x).backward()
    assert lines() == ["[0., 1.]"] * 2


def cond(x):
    return tl.cond(
        x.sum() > 3,
        lambda y: debug.print("more {}", y) or y * y,
        lambda y: debug.print("less {}", y) or -y,
        x,
    ).sum()


def while_loop(x):
    def body(carry):
        debug.print("i={}", carry[0])
        return carry[0] + 1, carry[1] * 2

    return tl.while_loop(lambda carry: carry[0] < 2, body, (torch.tensor(0), x))[1].sum()


def batched_while_loop(x):
    def body(carry):
        debug.print("{}", carry[1])
        return carry[0] + 1, carry[1] * 2

    return tl.while_loop(lambda carry: carry[0] < x[0], body, (torch.tensor(0), x))[1].sum()


def scan(x):
    def step(carry, t):
        debug.print("carry={} t={}", carry, t)
        return carry * t, carry

    return tl.scan(step, torch.tensor(1.0), x)[0]


BODIES = [cond, while_loop, scan]


@pytest.mark.sweep
@pytest.mark.parametrize("f", BODIES)
@pytest.mark.parametrize(
    "transform",
    [lambda f: f, tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))],
    ids=["f", "grad", "jvp"],
)
def test_compiled_control_flow_prints_what_python_does(f, transform, lines):
    x = X[1] + 1
    transform(f)(x)
    expected = lines()
    assert expected
    compiled = tl.compile(transform(f))
    for _ in range(2):
        compiled(x)
        assert lines() == expected


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("transform", [tl.vmap, lambda f: tl.vmap(tl.grad(f))])
def test_branches_print_the_samples_that_take_them(transform, lines):
    expected = ["sample 0: less [0., 1.]", "sample 1: more [2., 3.]", "sample 2: more [4., 5.]"]
    transform(cond)(X)
    assert sorted(lines(), key=lambda line: line.partition(":")[0]) == expected
    tl.compile(transform(cond))(X)
    assert sorted(lines(), key=lambda line: line.partition(":")[0]) == expected


def test_a_gathered_branch_keeps_the_numbers_of_the_samples(lines):
    def f(x):
        print_it = lambda y: debug.print("{}", y) or y  # noqa: E731
        return tl.cond(x > 2, print_it, torch.neg, x, batched="gather")

    tl.vmap(tl.vmap(f))(X)
    assert lines() == ["sample (1, 1): 3.", "sample (2, 0): 4.", "sample (2, 1): 5."]


def test_samples_that_have_left_a_loop_print_no_more(lines):
    expected = ["sample 0: [1.]", "sample 1: [3.]", "sample 1: [6.]", "sample 1: [12.]"]
    tl.vmap(batched_while_loop)(torch.tensor([[1.0], [3.0]]))
    assert lines() == expected
    tl.compile(tl.vmap(batched_while_loop))(torch.tensor([[1.0], [3.0]]))
    assert lines() == expected


@pytest.mark.parametrize("sample", ["all", -1, (0, "a"), 1.5])
def test_other_samples_are_refused(sample):
    with pytest.raises(TransformError, match=r"debug\.print: sample must be 'each', 'batch', "):
        debug.print("{}", X, sample=sample)


def test_torch_compile_is_told_that_it_does_not_work():
    with pytest.raises(Exception, match="print does not work in torch"):
        torch.compile(show, backend="eager", fullgraph=True)(X)


@pytest.fixture
def typing(monkeypatch):
    """Types commands into the debugger, and returns what it shows."""

    def type_in(run, *commands):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*commands, "c", ""])))
        monkeypatch.setattr(sys, "stdout", out)
        run()
        monkeypatch.undo()
        return out.getvalue()

    return type_in


def stopping(x):
    number = 7
    y = x * 2
    debug.breakpoint()
    return (y * number).sum()


def test_breakpoint_stops_in_the_frame(typing):
    text = typing(lambda: tl.vmap(stopping)(X), "p number, torchlayers.level(y)", "p y.shape")
    assert "in stopping" in text or "stopping()" in text
    assert "torch.Size([2])" in text


def test_breakpoint_in_a_compiled_function_has_numbers(typing):
    compiled = tl.compile(tl.vmap(stopping))
    for _ in range(2):
        text = typing(lambda: compiled(X), "p number, y.tolist()")
        assert "(7, [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]])" in text
        assert "test_debug.py" in text


def test_breakpoint_of_one_sample(typing):
    def f(x):
        debug.breakpoint(sample=1)
        return x

    assert "[2.0, 3.0]" in typing(lambda: tl.vmap(f)(X), "p x.tolist()")


def test_the_environment_turns_breakpoints_off(monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert tl.vmap(stopping)(X).shape == (3,)
    assert tl.compile(tl.vmap(stopping))(X).shape == (3,)
