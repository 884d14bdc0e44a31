"""The training flags of modules are part of a compiled function's signature."""

import copy
import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchlayers as tl

X = torch.ones(4, 3)


class Net(nn.Module):
    """Reads its training flag only in Dropout."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Dropout(0.5), nn.Identity())

    def forward(self, x):
        return self.inner(x) + 1


def replayed(f):
    return tl.compile(f, backend="replay")


def called(net):
    return replayed(net)


def captured(net):
    return replayed(lambda x: net(x))


def functional(net):
    f = replayed(lambda params, x: tl.functional_call(net, params, (x,)))
    return lambda x: f({}, x)


def vmapped(net):
    return replayed(tl.vmap(net, randomness="different"))


def inside_a_compiled_function(net):
    inner = replayed(net)
    return replayed(lambda x: inner(x))


@pytest.mark.parametrize(
    "made", [called, captured, functional, vmapped, inside_a_compiled_function]
)
def test_each_mode_is_captured(made):
    net = Net()
    f = made(net)
    for _ in range(3):
        assert set(f(X).unique().tolist()) <= {1.0, 3.0}
        assert not torch.equal(f(X.expand(4, 3)), X + 1)
        net.eval()
        for _ in range(2):
            assert torch.equal(f(X), X + 1)
        net.inner.train()
    net.eval()
    assert torch.equal(f(X), X + 1)


def test_recordings_are_found_again():
    net = Net()
    f = replayed(net)
    for mode in (True, False, True, False):
        net.train(mode)
        f(X)
        f(X)
    first, second = f.report().signatures
    assert (first.calls, second.calls) == (4, 4)
    assert second.why == "Net is not in training, and was"


def test_statistics_are_written_in_training_alone():
    net = nn.BatchNorm1d(3)
    other = copy.deepcopy(net)
    f = replayed(net)
    for mode in (True, False, True, False):
        net.train(mode)
        other.train(mode)
        x = torch.randn(5, 3)
        torch.testing.assert_close(f(x), other(x))
        torch.testing.assert_close(net.running_mean, other.running_mean)


def test_plain_autograd_differentiates_both_modes():
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(1.0))
    f = replayed(net)
    x = X.clone().requires_grad_()
    assert torch.autograd.grad(f(x).sum(), x)[0].abs().max() == 0
    net.eval()
    torch.testing.assert_close(*(torch.autograd.grad(g(x).sum(), x)[0] for g in (f, net)))


def test_for_many_sizes():
    net = Net()
    f = tl.compile(net, backend="replay", dynamic=True)
    for size in (2, 3, 5, 8):
        x = torch.ones(size, 3)
        net.train()
        assert set(f(x).unique().tolist()) <= {1.0, 3.0}
        net.eval()
        assert torch.equal(f(x), x + 1)


def test_mode_set_inside_is_not_part_of_the_signature():
    net = Net().eval()

    def f(x):
        with_dropout = net.train()(x)
        return F.relu(with_dropout), net.eval()(x)

    g = replayed(f)
    for _ in range(3):
        assert torch.equal(g(X)[1], X + 1)
    assert len(g.report().signatures) == 1


def test_modules_called_by_other_threads_are_not_part_of_the_signature():
    other, stop = Net(), threading.Event()

    def run():
        while not stop.is_set():
            other(X)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        f = replayed(Net().eval())
        f(X)
    finally:
        stop.set()
        thread.join()
    other.eval()
    f(X)
    assert len(f.report().signatures) == 1


def test_module_is_freed_with_its_function():
    net = Net()
    net.run = replayed(net)
    net.run(X)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def another_parameter(net):
    net[0].weight = nn.Parameter(torch.zeros(4, 3))


def loaded(net):
    net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}, assign=True)


def another_child(net):
    net[1] = nn.ReLU()


def one_more_child(net):
    net.append(nn.Tanh())


def a_hook(net):
    net[1].register_forward_hook(lambda module, args, result: result * 2)


CHANGES = {
    another_parameter: "weight of Linear is a different object",
    loaded: "weight of Linear is a different object",
    another_child: "1 of Sequential is a different object",
    one_more_child: "Sequential has 4 children, had 3",
    a_hook: "Sigmoid has 1 hooks, had 0",
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_module_is_recaptured(change):
    net = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1))
    f = captured(net)
    f(X)
    change(net)
    torch.testing.assert_close(f(X), net(X))
    f(X)
    assert [entry.why for entry in f.report().signatures] == ["", CHANGES[change]]


def test_compiled_forward_uses_tensors_from_functional_call():
    class Scaled(nn.Linear):
        @tl.compile(backend="replay")
        def forward(self, x):
            return super().forward(x) * 2

    net = Scaled(3, 1)
    expected = net(X)
    given = {name: value.detach() * 3 for name, value in net.named_parameters()}
    torch.testing.assert_close(tl.functional_call(net, given, (X,)), expected.detach() * 3)
    torch.testing.assert_close(net(X), expected)


def test_compiled_forward_follows_its_modules_mode():
    class Net(nn.Module):
        @tl.compile(backend="replay")
        def forward(self, x):
            return F.dropout(x, 0.5, self.training) + 1

    net = Net()
    assert set(net(X).unique().tolist()) <= {1.0, 3.0}
    assert torch.equal(net.eval()(X), X + 1)
