"""Results with uninitialized entries: the check of the first result skips them."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from torchlayers.compiler.passes.uninitialized_results import uninitialized_results

aten = torch.ops.aten

LOG_PROBS = torch.randn(30, 4, 10, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
TARGETS = torch.arange(32).view(4, 8) % 9 + 1
LENGTHS = [30, 12, 20, 9], [8, 3, 5, 2]


def ctc(log_probs):
    return aten._ctc_loss(log_probs, TARGETS, *LENGTHS)


def written(x):
    y = torch.empty_like(x)
    y[0].copy_(x[0])
    return y


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (ctc, {1}),
        (lambda x: (ctc(x)[1][..., :3], ctc(x)[0]), {0}),
        (lambda x: (torch.stack([*ctc(x)[1:], *ctc(x)[1:]]).clone(), x.sin()), {0}),
        (lambda x: (aten._ctc_loss_backward(x[0, :, 0], x, TARGETS, *LENGTHS, *ctc(x), 0),), set()),
        (lambda x: (x.new_empty(3), x.new_zeros(3), torch.empty_like(x).mT), {0, 2}),
        (lambda x: (torch.empty_like(x).fill_(1), written(x)), set()),
        (lambda x: (torch.empty_like(x).copy_(x), x.split(2)[0]), set()),
    ],
    ids=["ctc", "a view", "copies", "ctc's backward", "allocated", "written", "copied to"],
)
def test_uninitialized_results_are_found(func, expected):
    graph = make_fx(lambda x: [*func(x)])(LOG_PROBS)
    assert uninitialized_results(graph) == expected


def fill_freed_memory(like):
    """Fills memory and frees it, so that the next allocation finds other numbers."""
    for exponent in range(0, 30, 5):
        like.clone().fill_(10.0**exponent)


@pytest.fixture(params=["replay", "inductor"])
def check_is_silent(request, monkeypatch):
    """Compiles and calls a function many times; a fake Inductor runs the graph."""
    as_it_is = lambda graph, *_: lambda tensors: graph(*tensors)  # noqa: E731
    monkeypatch.setattr("torchlayers.compiler.inductor.compile.compile_graph", as_it_is)

    def check(func, x):
        alpha = ctc(LOG_PROBS)[1]
        for _ in range(10):
            compiled = tl.compile(func, backend=request.param)
            fill_freed_memory(alpha)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="torchlayers: compile")
                result = compiled(x)
            yield result

    return check


def test_ctc_loss_and_its_forward_variables(check_is_silent):
    for loss, alpha in check_is_silent(ctc, LOG_PROBS):
        torch.testing.assert_close(loss, ctc(LOG_PROBS)[0])
        assert alpha.shape == (4, 30, 17)


@pytest.mark.sweep
def test_ctc_loss_and_its_gradient(check_is_silent):
    def loss(log_probs):
        return F.ctc_loss(log_probs, TARGETS, *map(torch.tensor, LENGTHS))

    expected = tl.grad(loss)(LOG_PROBS)
    x = LOG_PROBS.clone().requires_grad_()
    for result in check_is_silent(loss, x):
        torch.testing.assert_close(torch.autograd.grad(result, x)[0], expected)


def test_initialized_results_are_still_compared(monkeypatch):
    def wrong_loss(graph, *_):
        return lambda tensors: [2 * graph(*tensors)[0], *graph(*tensors)[1:]]

    monkeypatch.setattr("torchlayers.compiler.inductor.compile.compile_graph", wrong_loss)
    with pytest.warns(UserWarning, match="result 0 is off by"):
        tl.compile(ctc, backend="inductor")(LOG_PROBS)


def test_a_part_whose_memory_a_later_part_fills():
    graph = make_fx(lambda x: (written(x), torch.empty_like(x).copy_(x)))(LOG_PROBS)
    assert uninitialized_results(graph, is_part=True) == {0}
