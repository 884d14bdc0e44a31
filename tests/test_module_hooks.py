"""Hooks of modules run under transforms as they do in plain code."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

import torchlayers as tl

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Scaled(nn.Linear):
    def forward(self, x, *, scale=1.0):
        return super().forward(x) * scale


def tripled(args):
    return (3 * args[0],)


# For each kind: puts a hook on the module that changes what goes through; returns its handle.
HOOKS = {
    "forward": lambda net: net.register_forward_hook(lambda m, args, out: out.sin() * args[0]),
    "forward, with keywords": lambda net: net.register_forward_hook(
        lambda m, args, kwargs, out: out * kwargs["scale"], with_kwargs=True
    ),
    "forward, first": lambda net: (
        net.register_forward_hook(lambda m, args, out: out + 1),
        net.register_forward_hook(lambda m, args, out: out * 2, prepend=True),
    ),
    "pre-forward": lambda net: net.register_forward_pre_hook(lambda m, args: tripled(args)),
    "pre-forward, with keywords": lambda net: net.register_forward_pre_hook(
        lambda m, args, kwargs: (tripled(args), {"scale": 5 * kwargs["scale"]}), with_kwargs=True
    ),
    "that reads the parameters": lambda net: net.register_forward_hook(
        lambda m, args, out: out + m.weight.square().sum()
    ),
    "for all modules": lambda net: modules.register_module_forward_hook(
        lambda m, args, out: out.exp()
    ),
    "for all modules, before": lambda net: modules.register_module_forward_pre_hook(
        lambda m, args: tripled(args)
    ),
}


@pytest.fixture(params=HOOKS)
def net(request):
    torch.manual_seed(0)
    net = Scaled(4, 4).double()
    handles = HOOKS[request.param](net)
    yield net
    for handle in handles if isinstance(handles, tuple) else (handles,):
        handle.remove()


def given(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def called(net, params, x):
    return tl.functional_call(net, params, (x,), {"scale": 0.5})


def loss(net, params, x):
    return called(net, params, x).square().sum()


def plain_gradients(net, x):
    return dict(
        zip(
            ("weight", "bias"),
            torch.autograd.grad(net(x, scale=0.5).square().sum(), [net.weight, net.bias]),
            strict=True,
        )
    )


def test_under_grad(net):
    gradients = tl.grad(lambda p: loss(net, p, X))(given(net))
    torch.testing.assert_close(gradients, plain_gradients(net, X))


def test_under_vmap(net):
    result = tl.vmap(lambda x: called(net, given(net), x))(X)
    torch.testing.assert_close(result, torch.stack([net(x, scale=0.5) for x in X]))


def test_under_vmap_of_grad(net):
    gradients = tl.vmap(tl.grad(lambda p, x: loss(net, p, x)), (None, 0))(given(net), X)
    for i, x in enumerate(X):
        expected = plain_gradients(net, x)
        torch.testing.assert_close({name: g[i] for name, g in gradients.items()}, expected)


def test_under_jvp(net):
    x, tangent = X, X.cos()
    _, out = tl.jvp(lambda x: called(net, given(net), x), (x,), (tangent,))
    step = 1e-6
    ahead, behind = (net(x + sign * step * tangent, scale=0.5) for sign in (1, -1))
    torch.testing.assert_close(out, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


def test_under_functional(net):
    apply, params, buffers = tl.functional(net)
    torch.testing.assert_close(apply(params, buffers, X, scale=0.5)[0], net(X, scale=0.5))


@pytest.mark.parametrize("transform", [tl.grad, tl.vmap], ids=["grad", "vmap"])
def test_a_hook_that_is_always_called_is_called_after_an_exception(transform):
    net, seen = nn.Linear(4, 4), []
    net.register_forward_hook(lambda m, args, out: seen.append(out), always_call=True)
    with pytest.raises(RuntimeError):
        transform(lambda x: tl.functional_call(net, {}, (x,)).sum())(torch.ones(3, 5))
    assert seen == [None]


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_refused_in_grad(kind):
    """torch's Function for them is made for plain autograd."""
    net = nn.Linear(4, 4).double()
    getattr(net, kind)(lambda *_: None)
    with pytest.raises(RuntimeError, match="BackwardHookFunction is made for plain autograd"):
        tl.grad(lambda x: tl.functional_call(net, {}, (x,)).sum())(X)
    assert tl.current_stack() == ()
    torch.testing.assert_close(tl.vmap(net)(X), net(X))
