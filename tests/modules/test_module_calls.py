"""functional_call skips nn.Module.__call__ only where it would do nothing but call forward."""

import sys
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchlayers as tl

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Doubled(nn.Linear):
    """Its call does more than its forward."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class Around(nn.Linear):
    def _call_impl(self, *args):
        return super()._call_impl(*args) + 1


class Found(nn.Linear):
    """Provides a forward of its own through attribute lookup."""

    def __getattribute__(self, name):
        if name == "forward":
            return lambda x: 3 * nn.Linear.forward(self, x)
        return super().__getattribute__(name)


class Backwards(nn.Sequential):
    def __iter__(self):
        return reversed(self._modules.values())


class Twice(nn.Sequential):
    def forward(self, x):
        return super().forward(super().forward(x))


def layers(kind=nn.Sequential, first=nn.Linear):
    torch.manual_seed(0)
    return kind(first(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))).double()


def with_own_forward():
    net = layers()
    net[0].forward = lambda x: 5 * x
    return net


def with_own_forward_outside():
    net = layers()
    net.forward = lambda x: x.sin()
    return net


def with_own_call():
    net = layers()
    net[1]._call_impl = lambda x: x.cos()
    return net


def compiled():
    net = layers()
    net[0].compile(backend="eager")
    return net


def scripted():
    net = layers()
    net[1] = torch.jit.script(net[1])
    return net


NETS = {
    "as it is": layers,
    "a call of its own": lambda: layers(first=Doubled),
    "a call of its own, outermost": lambda: Doubled(4, 4).double(),
    "_call_impl": lambda: layers(first=Around),
    "__getattribute__": lambda: layers(first=Found),
    "__iter__": lambda: layers(Backwards),
    "forward of a subclass": lambda: layers(Twice),
    "forward of an object": with_own_forward,
    "forward of an object, outermost": with_own_forward_outside,
    "_call_impl of an object": with_own_call,
    "compiled": compiled,
    "scripted within": scripted,
    "empty": lambda: nn.Sequential(),
}


def own(net):
    return {name: p.detach() for name, p in net.named_parameters()}


@pytest.mark.parametrize("kind", NETS)
def test_a_module_runs_what_its_call_runs(kind):
    net = NETS[kind]()
    given = {name: 2 * p for name, p in own(net).items()}
    result = tl.functional_call(net, given, (X,))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    assert torch.equal(result, net(X))


PATCHED = [(nn.Module, "__call__"), (nn.Module, "_call_impl"), (nn.Sequential, "forward")]


@pytest.mark.parametrize("of, name", PATCHED)
def test_a_patched_call_is_called(of, name):
    net, torchs = layers(), getattr(of, name)
    with mock.patch.object(of, name, lambda *args: torchs(*args) + 1):
        assert torch.equal(tl.functional_call(net, own(net), (X,)), net(X))


def test_a_hook_put_on_while_the_module_runs_is_run():
    net = layers()

    def put_on(*_):
        net[1].register_forward_hook(lambda *_: X)

    net[0].register_forward_hook(put_on)
    assert torch.equal(tl.functional_call(net, own(net), (X,)), X)


def test_a_module_that_changes_while_it_runs_is_refused_as_in_plain_code():
    def changed():
        net = layers()
        net[0].register_forward_hook(lambda *_: net.append(nn.Tanh()))
        return net

    with pytest.raises(RuntimeError) as plain:
        changed()(X)
    net = changed()
    with pytest.raises(RuntimeError, match=str(plain.value)):
        tl.functional_call(net, own(net), (X,))


@pytest.mark.parametrize("wrong", [(), (X, X)])
def test_arguments_are_those_of_forward(wrong):
    net = layers()
    with pytest.raises(TypeError, match="forward"):
        tl.functional_call(net, own(net), wrong)


def test_an_exception_within_leaves_the_module_its_tensors():
    net = layers()
    before = list(net.parameters())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tl.functional_call(net, {n: 2 * p for n, p in own(net).items()}, (X[:, :3],))
    assert all(a is b for a, b in zip(before, net.parameters(), strict=True))


def test_an_error_names_the_line_of_the_users_module():
    class Wrong(nn.Module):
        def forward(self, x):
            raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user") as caught:
        tl.functional_call(nn.Sequential(nn.Sequential(Wrong())), {}, (X,))
    assert caught.traceback[-1].name == "forward"


@pytest.mark.sweep
def test_deep_nests_are_an_error_not_a_crash():
    net = nn.Tanh()
    for _ in range(5_000):
        net = nn.Sequential(net)
    with pytest.raises(RecursionError):
        tl.functional_call(net, {}, (X,))


def test_a_profiler_sees_the_modules():
    net = layers()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as seen:
        tl.functional_call(net, own(net), (X,))
    names = {event.key for event in seen.key_averages()} | {e.name for e in seen.events()}
    assert any("Linear" in name for name in names)


@contextmanager
def traced(calls):
    sys.setprofile(lambda frame, *_: calls.append(frame.f_code.co_name))
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_python_profiler_sees_the_calls():
    net, calls = layers(), []
    with traced(calls):
        tl.functional_call(net, own(net), (X,))
    assert "_call_impl" in calls
