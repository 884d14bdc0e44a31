"""A compiled module in place of the module: in other modules, on disk, under torch's tools."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import torchlayers as tl

X = torch.ones(2, 3)


def replayed(f):
    return tl.compile(f, backend="replay")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def test_compiled_module_is_a_module():
    net = network()
    compiled = replayed(net)
    assert isinstance(compiled, nn.Sequential)
    assert not isinstance(replayed(lambda x: x), nn.Module)
    for same in (compiled.eval(), compiled.to(torch.float64), compiled.requires_grad_(False)):
        assert same is compiled
    assert not net.training and net[0].weight.dtype is torch.float64
    compiled.scale = 3
    assert net.scale == 3
    del compiled.scale
    assert not hasattr(net, "scale")


def test_parameter_names_inside_another_module_are_unchanged():
    net = network()
    compiled = Around(replayed(net))
    plain = Around(net)
    assert [*compiled.state_dict()] == [*plain.state_dict()]
    assert dict(compiled.named_parameters()) == dict(plain.named_parameters())
    compiled.eval()
    assert not net[0].training
    compiled.double()
    torch.testing.assert_close(compiled(X.double()), plain(X.double()))
    compiled.load_state_dict({name: 0 * value for name, value in plain.state_dict().items()})
    assert torch.equal(nn.Sequential(replayed(net), nn.ReLU())(X.double()), X.double()[:, :1] * 0)


def test_training_steps_its_parameters():
    trained = []
    for inner in (network(), replayed(network())):
        net = Around(inner)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(X).square().mean().backward()
            optimizer.step()
        trained.append([*net.parameters()])
    torch.testing.assert_close(*trained)


def saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), saved]
)
def test_copy_has_separate_parameters(copied):
    net = Around(replayed(network()))
    other = copied(net)
    torch.testing.assert_close(other(X), net(X))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(other(X), X[:, :1])
    assert not torch.equal(net(X), other(X))


@pytest.mark.parametrize("call", [tl.functional_call, torch.func.functional_call])
@pytest.mark.parametrize("around", [lambda net: net, Around])
def test_functional_call_replaces_parameters(call, around):
    net = around(replayed(network()))
    plain = around(network())
    before = net(X)
    for factor in (0.5, 2):
        given = {name: value.detach() * factor for name, value in plain.named_parameters()}
        torch.testing.assert_close(call(net, given, (X,)), call(plain, given, (X,)))
    torch.testing.assert_close(net(X), before)
    slopes = tl.grad(lambda given: call(net, given, (X,)).sum())(given)
    torch.testing.assert_close(slopes, tl.grad(lambda g: call(plain, g, (X,)).sum())(given))


def under_dynamo(net):
    return torch.compile(net, backend="eager", fullgraph=True)


def exported(net):
    return torch.export.export(net, (X,)).module()


def exported_by_dynamo(net):
    return torch.export.export(net, (X,), strict=True).module()


def traced(net):
    return torch.jit.trace(net, (X,))


@pytest.mark.sweep
@pytest.mark.parametrize("tool", [under_dynamo, exported, exported_by_dynamo, traced])
def test_torch_tools_see_the_original_module(tool):
    torch._dynamo.reset()
    net = Around(replayed(network()))
    torch.testing.assert_close(tool(net)(X), net(X))
