"""Checks of the first result: a wrongly simplified graph is replaced by the unsimplified one.

The passes here are wrong on purpose.
"""

import gc
import warnings
import weakref

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler import passes as simplify
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.runtime import build
from torchlayers.errors import TransformError

aten = torch.ops.aten


def swapped(wrong, right):
    """Returns a pass that replaces one operator with another."""

    def take(graph):
        for node in graph.graph.nodes:
            if node.target is wrong:
                node.target = right

    return take


def left_out(target):
    """Returns a pass that removes an operator: its first argument takes the place of its result."""

    def leave_out(graph):
        for node in graph.graph.find_nodes(op="call_function", target=target):
            if node.all_input_nodes:
                node.replace_all_uses_with(node.all_input_nodes[0])
            graph.graph.erase_node(node)

    return leave_out


@pytest.fixture(params=["replay", "inductor"])
def backend(request, monkeypatch):
    """The backends; a fake Inductor runs the graph unchanged."""
    as_it_is = lambda graph, *_: lambda tensors: graph(*tensors)  # noqa: E731
    monkeypatch.setattr(inductor, "compile_graph", as_it_is)
    return request.param


@pytest.fixture
def simplified_by(monkeypatch):
    """Returns a function that adds a pass to the simplification."""

    def add(wrong_pass):
        wrong = simplify.Stage((wrong_pass,), "it is wrong")
        monkeypatch.setattr(simplify, "STAGES", (*simplify.STAGES, wrong))

    return add


def how(compiled):
    return [entry.how for entry in compiled.report().signatures]


def test_wrong_pass_warns_and_the_result_is_right(backend, simplified_by):
    simplified_by(swapped(aten.sin.default, aten.cos.default))
    compiled = tl.compile(tl.vmap(torch.sin), backend=backend)
    x = torch.zeros(3)
    with pytest.warns(UserWarning, match="simplified graph of .* is wrong: result 0 is off"):
        torch.testing.assert_close(compiled(x), x.sin())
    assert how(compiled)[0].startswith("replay (unsimplified: the simplified graph's result 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x + 1), (x + 1).sin())


def test_without_check_wrong_result_is_returned(simplified_by):
    simplified_by(swapped(aten.sin.default, aten.cos.default))
    assert tl.compile(torch.sin, backend="replay", check=False)(torch.zeros(())) == 1


def test_graphs_with_collectives_are_not_checked(monkeypatch, simplified_by):
    monkeypatch.setattr(build, "communicates", lambda graph: True)
    simplified_by(swapped(aten.sin.default, aten.cos.default))
    for requires_grad in (False, True):
        x = torch.zeros((), requires_grad=requires_grad)
        assert tl.compile(torch.sin, backend="replay")(x) == 1


def test_wrong_write_is_undone(backend, simplified_by):
    simplified_by(swapped(aten.add.Tensor, aten.sub.Tensor))
    compiled = tl.compile(lambda x: x.add_(3), backend=backend)
    x = torch.ones(2)
    with pytest.warns(UserWarning, match="is wrong"):
        assert compiled(x) is x
    assert x.tolist() == [4, 4]
    assert compiled(x).tolist() == [7, 7]


def test_missing_random_draw_is_found(backend, simplified_by):
    def func(x):
        torch.rand(4)
        return x + torch.rand(2)

    def skip_first_draw(graph):
        graph.graph.erase_node(
            graph.graph.find_nodes(op="call_function", target=aten.rand.default)[0]
        )

    simplified_by(skip_first_draw)
    x = torch.zeros(2)
    torch.manual_seed(0)
    expected = func(x), torch.rand(1)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="is wrong"):
        assert tl.compile(func, backend=backend)(x).tolist() == expected[0].tolist()
    assert torch.rand(1) == expected[1]


@pytest.mark.parametrize("wrong", ["results", "gradients"])
def test_wrong_pass_is_found_under_plain_autograd(backend, simplified_by, wrong):
    """Only sin's cotangent has a product; a wrong sin also makes the results wrong."""
    wrong_pass = {
        "results": swapped(aten.sin.default, aten.exp.default),
        "gradients": left_out(aten.mul.Tensor),
    }[wrong]
    simplified_by(wrong_pass)
    compiled = tl.compile(lambda x: x.sin(), backend=backend)
    for count in range(3):
        x = torch.full((2,), count + 0.5, requires_grad=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            y = compiled(x)
            (gradient,) = torch.autograd.grad(y, x, torch.full((2,), 3.0))
        torch.testing.assert_close(y, x.sin())
        torch.testing.assert_close(gradient, 3 * x.cos())
        assert sum("is wrong" in str(one.message) for one in said) == (count == 0)
    assert how(compiled)[0].startswith("replay (unsimplified")


def test_earlier_calls_have_right_gradients_after_a_wrong_backward(simplified_by):
    simplified_by(left_out(aten.mul.Tensor))
    compiled = tl.compile(lambda x: x.sin(), backend="replay")
    inputs = [torch.full((2,), count + 0.5, requires_grad=True) for count in range(3)]
    results = [compiled(x) for x in inputs]
    with pytest.warns(UserWarning, match="gradient 0 is off"):
        for x, y in zip(inputs, results, strict=True):
            y.sum().backward()
            torch.testing.assert_close(x.grad, x.detach().cos())


def test_uncomputable_right_gradient_is_an_error(simplified_by):
    """The gradient of a sum does not read x, so x may be written to before the backward."""
    simplified_by(left_out(aten.expand.default))
    compiled = tl.compile(lambda x, y: x + y.sum(), backend="replay")
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    results = [compiled(x, torch.ones(3, requires_grad=True)) for x in (first, second)]
    with torch.no_grad():
        second.add_(1)
    with pytest.warns(UserWarning, match="gradient 1 is"):
        results[0].sum().backward()
    with pytest.raises(TransformError, match="an input has been written to since"):
        results[1].sum().backward()


def test_gradients_are_compared_at_the_same_random_draws(simplified_by):
    def func(x):
        return torch.nn.functional.dropout(x.sin(), 0.5)

    for passes in ((), (left_out(aten.cos.default),)):
        for wrong_pass in passes:
            simplified_by(wrong_pass)
        compiled, found = tl.compile(func, backend="replay"), []
        for f in (compiled, func):
            torch.manual_seed(0)
            x = torch.linspace(0.5, 1.5, 20, requires_grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if passes else "error")
                f(x).sum().backward()
            found.append((x.grad, torch.rand(1)))
        torch.testing.assert_close(*found)
        assert ("unsimplified" in how(compiled)[0]) == bool(passes)


@pytest.mark.sweep
@pytest.mark.parametrize("requires_grad", [False, True])
def test_unsimplified_graph_is_freed_after_the_check(backend, monkeypatch, requires_grad):
    graphs = []
    record = build.record

    def watched(*args, **kwargs):
        captured_graph = record(*args, **kwargs)
        graphs.append(weakref.ref(captured_graph.graph))
        return captured_graph

    monkeypatch.setattr(build, "record", watched)
    compiled = tl.compile(lambda x: x.clone().sin(), backend=backend)
    x = torch.ones(3, requires_grad=requires_grad)
    y = compiled(x)
    if requires_grad:
        y.sum().backward()
    gc.collect()
    assert [graph() for graph in graphs] == [None]


def broken(graph):
    """A pass that changes the graph and then raises."""
    swapped(aten.sin.default, aten.cos.default)(graph)
    raise ZeroDivisionError("no such pass\nreally")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_pass_that_raises_is_skipped(backend, simplified_by, requires_grad):
    simplified_by(broken)
    compiled = tl.compile(lambda x: (x * 1).sin(), backend=backend)
    x = torch.rand(3, requires_grad=requires_grad)
    said = r"\(broken: ZeroDivisionError: no such pass\)\. That pass is skipped"
    with pytest.warns(UserWarning, match=said):
        torch.testing.assert_close(compiled(x), x.sin())
    assert backend in how(compiled)[0] and "unsimplified" not in how(compiled)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x), x.sin())


def test_other_passes_run_after_one_raises(simplified_by):
    simplified_by(broken)
    compiled = tl.compile(lambda x: (x * 1).sin(), backend="replay")
    with pytest.warns(UserWarning, match="broken: ZeroDivisionError"):
        compiled(torch.rand(3))
    assert compiled.report().signatures[0].operators == 1


def test_pass_that_raises_in_a_loop_body_is_skipped(simplified_by):
    simplified_by(broken)
    compiled = tl.compile(
        lambda x: tl.while_loop(lambda c: c.sum() < 9, lambda c: c + (x * 1).sin(), x),
        backend="replay",
    )
    with pytest.warns(UserWarning, match="broken: ZeroDivisionError"):
        assert compiled(torch.ones(3)).sum() > 9


def test_unsimplified_graph_is_used_where_simplification_raises(backend, monkeypatch):
    def end(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(simplify, "keep", end)
    compiled = tl.compile(lambda x: (x * 1).sin().add_(1), backend=backend)
    x = torch.rand(3)
    with pytest.warns(
        UserWarning, match=r"\(simplify: ZeroDivisionError: \). The captured graph is used"
    ):
        torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert compiled.report().signatures[0].operators == 3


def test_interrupt_in_a_pass_is_raised(simplified_by):
    def interrupted(graph):
        raise KeyboardInterrupt

    simplified_by(interrupted)
    with pytest.raises(KeyboardInterrupt):
        tl.compile(torch.sin, backend="replay")(torch.ones(()))
