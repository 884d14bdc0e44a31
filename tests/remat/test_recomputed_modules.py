"""Plain autograd through checkpoints inside a module called by functional_call."""

import threading

import pytest
import torch
from torch import nn
from torch.distributed._composable import checkpoint as checkpoint_module
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import torchlayers as tl

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


def dots(ctx, op, *args, **kwargs):
    keeps = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


# Ways to checkpoint the blocks.
WAYS = {
    "not at all": lambda block, x: block(x),
    "not reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "nested": lambda block, x: checkpoint(
        lambda x: checkpoint(block, x, use_reentrant=False), x, use_reentrant=False
    ),
    "selective": lambda block, x: checkpoint(
        block,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(dots),
    ),
    "sequential": lambda block, x: checkpoint_sequential([block, nn.Tanh()], 2, x, False),
}


class Net(nn.Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = WAYS[way]
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.double()

    def forward(self, x):
        return self.way(self.second, self.way(self.first, x).sin())


def given(net, seed=1):
    torch.manual_seed(seed)
    return {n: torch.randn_like(p).requires_grad_() for n, p in net.named_parameters()}


def gradients(call, net, params, x=X):
    """Returns the gradients of a loss by the given tensors, by plain autograd after the call."""
    x = x.clone().requires_grad_()
    call(net, params, (x,)).square().sum().backward()
    return [p.grad for p in params.values()] + [x.grad]


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_use_the_given_tensors(way):
    net = Net(way)
    plain = Net("sequential" if way == "sequential" else "not at all")
    if way == "sequential":
        plain.way = lambda block, x: block(x).tanh()
    result = gradients(tl.functional_call, net, given(net))
    assert same(result, gradients(tl.functional_call, plain, given(plain)))


@pytest.mark.parametrize("way", ["not reentrant", "reentrant", "nested"])
def test_gradients_use_the_tensors_of_an_installed_functional_call(way):
    """Without install(), torch.func's is as without torchlayers."""
    net, plain = Net(way), Net("not at all")
    with tl.install():
        result = gradients(torch.func.functional_call, net, given(net))
        assert same(result, gradients(torch.func.functional_call, plain, given(plain)))


@pytest.mark.parametrize("way", ["not reentrant", "reentrant"])
def test_computed_parameters_propagate_gradients(way):
    def of_a_scale(net):
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        params = {n: p.detach() * scale for n, p in net.named_parameters()}
        x = X.clone().requires_grad_()
        tl.functional_call(net, params, (x,)).square().sum().backward()
        return scale.grad

    assert torch.equal(of_a_scale(Net(way)), of_a_scale(Net("not at all")))


@pytest.mark.parametrize("way", ["not reentrant", "reentrant"])
def test_two_calls_have_separate_tensors(way):
    net, plain = Net(way), Net("not at all")
    params = [given(net, seed) for seed in (1, 2)]
    outs = [tl.functional_call(net, p, (X.clone().requires_grad_(),)) for p in params]
    for out in outs:
        out.square().sum().backward()
    for seed, p in zip((1, 2), params, strict=True):
        expected = gradients(tl.functional_call, plain, given(plain, seed))
        assert same([t.grad for t in p.values()], expected[:-1])


def test_the_module_has_its_own_tensors_after_the_backward():
    net = Net("not reentrant")
    before = dict(net.named_parameters())
    gradients(tl.functional_call, net, given(net))
    assert all(p is before[name] for name, p in net.named_parameters())
    assert all(p.grad is None for p in before.values())


def test_failed_recomputation_restores_the_modules_tensors():
    class Fails(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                raise ValueError("the second time")
            return super().forward(x)

    net = Net("not reentrant")
    net.first = Fails(4, 4).double()
    before = dict(net.named_parameters())
    with pytest.raises(ValueError, match="the second time"):
        gradients(tl.functional_call, net, given(net))
    assert all(p is before[name] for name, p in net.named_parameters())


def test_a_module_checkpointed_by_hooks():
    net, plain = Net("not at all"), Net("not at all")
    checkpoint_module(net.second)
    result = gradients(tl.functional_call, net, given(net))
    assert same(result, gradients(tl.functional_call, plain, given(plain)))


def test_a_call_within_a_call():
    """The inner call replaces some of the outer call's tensors."""

    class Outer(Net):
        def forward(self, x):
            inner = {"0.weight": self.first.weight.cos()}
            return self.way(
                lambda x: tl.functional_call(self.second, inner, (x,)), super().forward(x)
            )

    net, plain = Outer("not reentrant"), Outer("not at all")
    result = gradients(tl.functional_call, net, given(net))
    assert same(result, gradients(tl.functional_call, plain, given(plain)))


def test_a_backward_on_another_thread():
    net, plain, found = Net("not reentrant"), Net("not at all"), []
    params, x = given(net), X.clone().requires_grad_()
    out = tl.functional_call(net, params, (x,)).square().sum()
    thread = threading.Thread(target=lambda: found.append(out.backward()))
    thread.start()
    thread.join()
    expected = gradients(tl.functional_call, plain, given(plain))
    assert found == [None] and same([p.grad for p in params.values()], expected[:-1])


def test_checkpoints_without_functional_call_are_torchs():
    net, plain = Net("not reentrant"), Net("not at all")
    for each in (net, plain):
        each(X.clone().requires_grad_()).square().sum().backward()
    assert same([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])
