"""Recurrent networks in compiled functions."""

import copy

import pytest
import torch
from torch import nn

import torchlayers as tl

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


def network(kind, **options):
    torch.manual_seed(0)
    return kind(3, 4, batch_first=True, **options)


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}])
def test_training_equals_eager_training(kind, options):
    trained = []
    for compiled in (False, True):
        net = network(kind, **options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        call = tl.compile(net, backend="replay") if compiled else net
        state = None
        for count in range(3):
            out, state = call(torch.full((2, 5, 3), 0.1 * count), state)
            state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
            optimizer.zero_grad()
            out.sin().mean().backward()
            optimizer.step()
        trained.append([parameter.detach() for parameter in net.parameters()])
    torch.testing.assert_close(trained[1], trained[0])


def test_lstm_differentiated_once_uses_torchs_kernel():
    """The kernel saves what its backward needs only in grad mode, which is off during replay."""
    net, x = network(nn.LSTM), torch.rand(2, 5, 3)
    graph = tl.make_graph(lambda x: torch.autograd.grad(net(x)[0].sum(), [*net.parameters()]))(x)
    targets = {node.target for node in graph.graph.nodes}
    assert torch.ops.torchlayers.lstm_layer.default in targets
    assert torch.ops.aten.mkldnn_rnn_layer_backward.default in targets
    loss = lambda x: net(x)[0].sin().sum()  # noqa: E731
    compiled = tl.compile(loss, backend="replay")
    for is_training in (True, False):
        net.train(is_training)
        given = x.clone().requires_grad_()
        slopes = [torch.autograd.grad(f(given), given) for f in (compiled, loss)]
        torch.testing.assert_close(*slopes)
    graph = tl.make_graph(net)(x)
    assert torch.ops.aten.mkldnn_rnn_layer.default in {node.target for node in graph.graph.nodes}


def slopes_by_layers(net, x):
    return tl.grad(lambda x: net(x)[0].sin().sum())(x)


def slopes_by_autograd(net, x):
    return torch.autograd.grad(net(x)[0].sum(), [*net.parameters()])


@pytest.mark.sweep
@pytest.mark.parametrize("slopes", [slopes_by_layers, slopes_by_autograd])
def test_gradient_is_captured_per_size(slopes):
    net = network(nn.LSTM)
    compiled = tl.compile(lambda x: slopes(net, x), backend="replay", dynamic=True)
    with pytest.warns(UserWarning, match="can't be captured with symbolic sizes"):
        for batch in (2, 3, 4):
            x = torch.rand(batch, 5, 3)
            torch.testing.assert_close(compiled(x), slopes(net, x))


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [tl.functional_call, torch.func.functional_call])
def test_functional_call_does_not_change_the_modules_weights(kind, call):
    """A recurrent module rebuilds its list of weights when they are replaced."""
    net, x = network(kind), torch.rand(2, 5, 3)
    before = copy.deepcopy(net)(x)[0]
    loss = lambda p: call(net, p, (x,))[0].sin().sum()  # noqa: E731
    params = {name: parameter.detach() * 0.5 for name, parameter in net.named_parameters()}
    compiled = tl.compile(tl.grad(loss), backend="replay")
    torch.testing.assert_close(compiled(params), tl.grad(loss)(params))
    torch.testing.assert_close(net(x)[0], before)
