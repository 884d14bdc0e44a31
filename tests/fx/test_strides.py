"""Values whose memory layout at run time differs from that of the captured graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from tests.fx.results import results
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.runtime.compare import sensitivity
from torchlayers.fx.program import replay

X = torch.linspace(0.5, 1.5, 6, dtype=torch.float64).reshape(2, 3)
SQUARE = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)


@torch.library.custom_op("torchlayers_tests::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Returns a column-major result, while its fake implementation says row-major."""
    return x.sin().mT.contiguous().mT


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


VIEWS = {
    "view": lambda y: y.view(-1),
    "reshape of a transpose of a transpose": lambda y: y.mT.mT.reshape(6),
    "as_strided": lambda y: y.as_strided((3, 2), (2, 1)),
    "view of another dtype": lambda y: y.view(torch.float32),
    "complex numbers": lambda y: torch.view_as_complex(y.reshape(3, 2)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view_reads_the_captured_layout(view):
    compiled = tl.compile(lambda x: view(turned(x)), backend="replay")
    torch.testing.assert_close(compiled(X), view(X.sin()))


def test_view_of_one_of_several_results_reads_the_captured_layout():
    def f(x):
        low, high = torch.aminmax(turned(x), dim=0)
        return (turned(x.clone()) * high).view(-1), torch.stack(turned(x).unbind(0)).view(-1), low

    low, high = torch.aminmax(X.sin(), dim=0)
    expected = (X.sin() * high).view(-1), X.sin().view(-1), low
    torch.testing.assert_close(tl.compile(f, backend="replay")(X), expected)


def test_write_through_a_view_reaches_its_base():
    def f(x):
        y = turned(x)
        y.view(-1).mul_(2)
        return y

    captured_graph = record(f, (X,))
    computed = replay(captured_graph.graph)([X])
    torch.testing.assert_close(results(captured_graph, (X,), computed), [2 * X.sin()])
    torch.testing.assert_close(tl.compile(f, backend="replay")(X), 2 * X.sin())


def test_view_with_dynamic_sizes_reads_the_captured_layout():
    compiled = tl.compile(lambda x: turned(x).view(-1), backend="replay", dynamic=True)
    for size in (2, 3, 4, 5):
        x = torch.linspace(0, 1, 3 * size).reshape(size, 3)
        torch.testing.assert_close(compiled(x), x.sin().view(-1))
    assert len(compiled.report().signatures) == 2


@pytest.mark.sweep
def test_gradients_laid_out_as_their_cotangent():
    """softplus_backward (torch 2.13) does; its fake result is laid out as the input."""

    def f(x, y):
        product = F.softplus(F.linear(SQUARE @ y, x, y[0]))
        return tl.cond(product.sum() > 0, lambda u: u.sin() * product, torch.cos, product @ x)

    rows = tl.jacrev(lambda x, y: f(x, y).flatten()[:5])
    found = []
    for g in (rows, tl.compile(rows, backend="replay")):
        x, y = (t.clone().requires_grad_() for t in (SQUARE, SQUARE.exp()))
        once = torch.autograd.grad(g(x, y).square().sum(), (x, y), create_graph=True)
        found.append((once, torch.autograd.grad(sum(t.square().sum() for t in once), (x, y))))
    torch.testing.assert_close(*found)


def test_perturbed_inputs_keep_their_strides():
    def laid_out(tensors):
        return [tensors[0].as_strided((2, 2), (6, 2))]

    x = torch.arange(12.0).reshape(2, 6)[:, 1::2]
    rows = torch.ones(1, 3).expand(4, 3)
    assert sensitivity(laid_out, [x], (), laid_out([x])) != [0.0]
    assert sensitivity(lambda given: [given[0][0]], [rows], (), [rows[0]])[0] < 1e-4
    seen = []
    sensitivity(lambda given: seen.append(given[0].stride()) or [given[0]], [rows], (), [rows])
    assert {*seen} == {rows.stride()}


@pytest.mark.parametrize("order", [(1, 2, 0), (0, 2, 1)], ids=["batch last", "columns"])
def test_batched_cotangents_may_have_other_strides(order):
    def f(x):
        return (x.reshape(-1).sin() * torch.arange(6.0)).reshape(2, 3)

    x = X.clone().requires_grad_()
    computed, expected = tl.compile(f, backend="replay")(x), f(x)
    back = [order.index(dim) for dim in range(3)]
    cotangents = torch.rand(4, 2, 3).permute(order).contiguous().permute(back).double()
    rows = torch.autograd.grad(computed, x, cotangents, is_grads_batched=True, retain_graph=True)
    mapped = tl.vmap(lambda g: torch.autograd.grad(computed, x, g, retain_graph=True))(cotangents)
    for found in (rows, mapped):
        for row, cotangent in zip(found[0], cotangents, strict=True):
            (one,) = torch.autograd.grad(expected, x, cotangent, retain_graph=True)
            torch.testing.assert_close(row, one)
