"""The contents of a captured graph."""

import gc
import itertools
import re
from collections import namedtuple

import pytest
import torch
from torch._subclasses import FakeTensor

import torchlayers as tl
from torchlayers.compiler.capture import dispatch_mode
from torchlayers.compiler.capture.record import record
from torchlayers.errors import TransformError

X = torch.ones(3)
Pair = namedtuple("Pair", "left right")


def names(captured_graph):
    return [node.name for node in captured_graph.graph.graph.find_nodes(op="placeholder")]


def operators(captured_graph):
    nodes = captured_graph.graph.graph.nodes
    return [str(node.target).split(".")[1] for node in nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "func, args, kwargs, expected",
    [
        (lambda x, y: x + y, (X, X), {}, ["x", "y"]),
        (lambda p: p["w"] + p["b"][0], ({"w": X, "b": [X]},), {}, ["p_w", "p_b_0"]),
        (lambda *xs, scale: xs[1] * scale, (X, X), {"scale": X}, ["xs_0", "xs_1", "scale"]),
        (lambda pair: pair.left, (Pair(X, X),), {}, ["pair_left", "pair_right"]),
        (torch.add, (X, X), {}, ["arg_0", "arg_1"]),
        (lambda x, n, y: x * n + y, (X, 3, X), {}, ["x", "y"]),
    ],
)
def test_inputs_are_named_after_arguments(func, args, kwargs, expected):
    assert names(record(func, args, kwargs)) == expected


def test_captured_tensors_follow_the_arguments_once_each():
    first, second = torch.ones(3), torch.zeros(3)
    captured_graph = record(lambda x: (x * second + first) * second, (X,))
    assert names(captured_graph) == ["x", "captured_0", "captured_1"]
    assert captured_graph.captured[0] is second and captured_graph.captured[1] is first


def test_constant_tensors_come_last():
    weight = torch.ones(3)
    captured_graph = record(lambda x: x * torch.tensor([1.0, 2.0, 3.0]) + weight, (X,))
    assert names(captured_graph) == ["x", "captured_0", "constant_0"]
    assert captured_graph.constants == 1
    assert captured_graph.captured[1].tolist() == [1, 2, 3]


def test_the_same_tensor_twice_is_two_inputs():
    captured_graph = record(lambda x, y: x - y, (X, X))
    (node,) = captured_graph.graph.graph.find_nodes(
        op="call_function", target=torch.ops.aten.sub.Tensor
    )
    assert [operand.name for operand in node.args] == ["x", "y"]


def test_graph_has_no_trace_of_layers():
    captured_graph = record(tl.vmap(tl.grad(lambda x: x.sin())), (X,))
    nodes = [node for node in captured_graph.graph.graph.nodes if node.op != "output"]
    assert {type(node.meta["val"]) for node in nodes} == {FakeTensor}
    assert tl.current_stack() == ()


def test_capture_writes_to_no_tensor():
    x, seen = torch.ones(3), torch.zeros(())

    def f(x):
        seen.add_(1)
        return x.mul_(2)

    record(f, (x,))
    assert (x.tolist(), seen.item()) == ([1, 1, 1], 0)


def test_unused_operators_are_dropped_except_random_ones():
    def f(x):
        x.sin()
        torch.rand(3)
        return x + 1

    assert operators(record(f, (X,))) == ["rand", "add"]


def test_gradient_graph_covers_inputs_that_require_grad():
    weight = torch.ones(3, requires_grad=True)
    captured_graph = record(
        lambda x, y: (x * y, (y * weight).sum()), (X, X.clone().requires_grad_()), gradients=True
    )
    assert captured_graph.gradients.of_outputs == [0, 1]
    assert captured_graph.gradients.by_inputs == [1, 2]
    assert names(captured_graph) == ["x", "y", "captured_0", "cotangent_0", "cotangent_1"]
    assert captured_graph.computed == 2


def test_no_gradient_graph_where_nothing_requires_grad():
    assert record(lambda x: x * 2, (X,), gradients=True).gradients is None
    assert (
        record(lambda x: x.detach(), (X.clone().requires_grad_(),), gradients=True).gradients
        is None
    )


def test_outputs_list_their_sources():
    captured = torch.zeros(3)
    captured_graph = record(lambda x: (x, x + 1, 2, captured), (X,))
    assert [tuple(output) for output in captured_graph.outputs] == [
        ("argument", 0),
        ("computed", 0),
        ("constant", 2),
        ("captured", 0),
    ]


def test_error_while_printing_a_tensor_restores_dispatch_keys():
    """Inside a jvp, torch can't print tensors below autograd."""

    def func(x):
        class Printed(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                with torch._C._AutoDispatchBelowAutograd():
                    repr(args[0])

        with Printed():
            return tl.jvp(torch.sin, (x,), (x,))

    excluded = torch._C._dispatch_tls_local_exclude_set()
    with pytest.raises(RuntimeError, match="_fw_primal"):
        record(func, (X,))
    assert torch._C._dispatch_tls_local_exclude_set() == excluded
    record(torch.sin, (X,))


def test_in_place_lerp_inside_a_jvp():
    def func(x):
        return tl.jvp(lambda x: x.clone().lerp_(2 * x, torch.full((), 0.25)), (x,), (x,))

    captured_graph = record(func, (X,))
    assert [result.tolist() for result in captured_graph.graph(X, *captured_graph.captured)] == [
        [1.25] * 3
    ] * 2


def test_jvp_of_a_slice_can_be_captured_twice():
    """torch's cache for a fake tensor knows nothing of the storage that the tensor is a part of."""

    def slope(x):
        return tl.jvp(lambda x: tl.jvp(torch.sin, (x,), (x.sin(),))[1], (x[1:],), (x[1:].cos(),))[1]

    curvature = tl.grad(lambda x: tl.grad(lambda x: slope(x).sum())(x).sum())
    x = torch.rand(3, 4, dtype=torch.float64)
    for _ in range(2):
        (found,) = record(curvature, (x,)).graph(x)
        torch.testing.assert_close(found, curvature(x))


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_collector_is_off_during_a_capture(is_on):
    seen = []
    looks = (seen.append(gc.isenabled()) for _ in itertools.count())  # hidden from the capture

    def f(x):
        next(looks)
        if x.dim() == 0:
            raise ZeroDivisionError
        return x + 1

    compiled = tl.compile(f, backend="replay")
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        compiled(torch.ones(2))
        assert (seen, gc.isenabled()) == ([False], is_on)
        with pytest.raises(ZeroDivisionError):
            compiled(torch.ones(()))
        assert (seen, gc.isenabled()) == ([False, False], is_on)
    finally:
        (gc.enable if was_on else gc.disable)()


def test_device_of_a_traced_tensor_is_the_real_one():
    devices = []

    def f(x):
        devices.extend([x.device, tl.vmap(lambda y: y)(x).device])
        return x.to("meta"), (x + 1).cpu()

    graph = record(f, [torch.ones(2)]).graph
    assert devices == [torch.device("cpu")] * 2
    (on_meta, on_cpu) = graph(torch.ones(2))
    assert (on_meta.device.type, on_cpu.tolist()) == ("meta", [2, 2])


@pytest.mark.parametrize("at", range(1, 60, 3))
def test_error_at_any_operator_is_raised_unchanged(at, monkeypatch):
    """Also if Python code that restores state runs while the error propagates."""
    count = 0
    below = dispatch_mode.CaptureDispatchMode.__torch_dispatch__

    def counted(*args):
        nonlocal count
        count += 1
        if count == at:
            raise ZeroDivisionError
        return below(*args)

    func = tl.vmap(tl.hessian(lambda x: (x.sin() * x.roll(1)).sum()))
    x = torch.randn(3, 5)
    expected = func(x)
    monkeypatch.setattr(dispatch_mode.CaptureDispatchMode, "__torch_dispatch__", counted)
    with pytest.raises(ZeroDivisionError):
        tl.make_graph(func)(x)
    assert tl.current_stack() == ()
    torch.testing.assert_close(func(x), expected)


def test_a_refusal_inside_torchscript_is_raised_in_our_words():
    """TorchScript's interpreter makes a RuntimeError without a text of it."""
    code = "def squared(x):\n    return x * x\n"
    squared = torch.jit.CompilationUnit(code).squared
    negated = torch.complex(torch.tensor(0.3), torch.tensor(-0.3)).conj().imag
    assert negated.is_neg()
    for transform in (lambda f: f, tl.grad, tl.vmap, tl.functionalize):
        compiled = tl.compile(transform(lambda x: squared(negated) * x), backend="replay")
        with pytest.raises(TransformError, match=re.escape("Capture its resolve_conj()")):
            compiled(torch.ones(3)[0] if transform is tl.grad else torch.ones(3))
        assert tl.current_stack() == ()


def _with_a_parameter(x):
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        weight[1:].mul_(2.0)
    layer = torch.nn.LayerNorm(3)
    return (layer(x * weight).sin() * weight).sum()


@pytest.mark.parametrize("symbolic", [None, [{0}]])
@pytest.mark.parametrize("inner", [tl.grad, tl.hessian, tl.laplacian])
def test_parameters_may_be_constructed_inside_a_transform(inner, symbolic):
    """nn.Parameter makes another tensor on the memory of one that was traced."""
    func = tl.vmap(inner(_with_a_parameter))
    captured_graph = record(func, (torch.ones(2, 3),), symbolic=symbolic)
    x = torch.tensor([[0.5, -0.3, 0.8], [1.0, 0.2, -0.6]])
    for _ in range(2):
        (result,) = captured_graph.graph(x, *captured_graph.captured)
        torch.testing.assert_close(result, func(x))
