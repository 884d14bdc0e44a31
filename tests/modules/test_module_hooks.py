"""Hooks of modules run under transforms as they do in plain code."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

import torchlayers as tl
from tests.support.traced_steps import traced_steps
from torchlayers.errors import TransformError

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Scaled(nn.Linear):
    def forward(self, x, *, scale=1.0):
        return super().forward(x) * scale


def tripled(args):
    return (3 * args[0],)


# For each kind of hook: registers one that changes what passes through the module, and returns its
# handle.
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


def scaled(by):
    return lambda module, *gradients: tuple(None if g is None else by * g for g in gradients[0])


# For each kind: registers hooks on the modules of a network that change gradients.
BACKWARD = {
    "after": lambda net: [net[1].register_full_backward_hook(scaled(2))],
    "before": lambda net: [net[1].register_full_backward_pre_hook(scaled(3))],
    "both": lambda net: [
        net[2].register_full_backward_pre_hook(scaled(3)),
        net[2].register_full_backward_hook(scaled(5)),
        net[1].register_full_backward_hook(scaled(2)),
    ],
    "on the first": lambda net: [net[0].register_full_backward_pre_hook(scaled(7))],
    "on all": lambda net: [net.register_full_backward_hook(scaled(2))],
    "on one that takes two": lambda net: [net[3].register_full_backward_hook(scaled(2))],
    "not full": lambda net: [net[1].register_backward_hook(scaled(2))],
    "for all modules": lambda net: [modules.register_module_full_backward_hook(scaled(2))],
    "for all modules, before": lambda net: [
        modules.register_module_full_backward_pre_hook(scaled(3))
    ],
}


class Mix(nn.Module):
    def forward(self, x, y, factor):
        return x * y * factor, x + y, "nothing"


class Net(nn.Sequential):
    def forward(self, x):
        x = self[2](self[1](self[0](x)))
        product, _, _ = self[3](x, x.cos(), 2.0)
        return product


@pytest.fixture(params=BACKWARD)
def watched(request):
    torch.manual_seed(0)
    net = Net(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), Mix()).double()
    handles = BACKWARD[request.param](net)
    yield net
    for handle in handles:
        handle.remove()


def squares(net, params, x):
    return tl.functional_call(net, params, (x,)).square().sum()


def plainly(net, x):
    """Gradients with respect to the parameters and x."""
    x = x.clone().requires_grad_()
    params = dict(net.named_parameters())
    gradients = torch.autograd.grad(net(x).square().sum(), [*params.values(), x])
    return dict(zip(params, gradients[:-1], strict=True)), gradients[-1]


def test_backward_hooks_under_grad(watched):
    with traced_steps() as events:
        found = tl.grad(lambda p, x: squares(watched, p, x), (0, 1))(given(watched), X)
    torch.testing.assert_close(found, plainly(watched, X))
    assert {event.op for event in events if event.step == "pull_back"} == {"torchlayers"}


def test_backward_hooks_under_vmap_of_grad(watched):
    ours = tl.grad(lambda p, x: squares(watched, p, x), (0, 1))
    found = tl.vmap(ours, (None, 0))(given(watched), X)
    for i, x in enumerate(X):
        params, by_x = plainly(watched, x)
        torch.testing.assert_close({name: g[i] for name, g in found[0].items()}, params)
        torch.testing.assert_close(found[1][i], by_x)


def jacobian_of_gradients(net, x, step=1e-6):
    """The Jacobian of the hooked gradient with respect to x, by finite differences of plain
    autograd's."""
    columns = []
    for e in torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape):
        ahead, behind = (plainly(net, x + sign * step * e)[1] for sign in (1, -1))
        columns.append((ahead - behind).flatten() / (2 * step))
    return torch.stack(columns, 1)


SECOND = {
    "grad": (lambda g: tl.grad(lambda x: (g(x) * X.cos()).sum())(X), lambda j, v: v @ j),
    "vjp": (lambda g: tl.vjp(g, X)[1](X.cos())[0], lambda j, v: v @ j),
    "jvp": (lambda g: tl.jvp(g, (X,), (X.cos(),))[1], lambda j, v: j @ v),
    "jacrev": (lambda g: tl.jacrev(g)(X), lambda j, v: j),
    "jacfwd": (lambda g: tl.jacfwd(g)(X), lambda j, v: j),
}


@pytest.mark.parametrize(("second", "of_jacobian"), SECOND.values(), ids=SECOND)
def test_second_derivatives_with_backward_hooks(watched, second, of_jacobian):
    found = second(tl.grad(lambda x: squares(watched, given(watched), x)))
    expected = of_jacobian(jacobian_of_gradients(watched, X), X.cos().flatten())
    torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=1e-6, atol=1e-6)


def noting(log, name):
    def hook(module, *gradients):
        flat = [g for part in gradients for g in part]
        log.append((name, [g if g is None else g.detach() + 0 for g in flat]))

    return hook


def test_backward_hooks_are_called_as_in_plain_autograd():
    def logged(run):
        log = []
        torch.manual_seed(0)
        net = Net(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), Mix()).double()
        for i, module in enumerate(net):
            module.register_full_backward_hook(noting(log, i))
            module.register_full_backward_pre_hook(noting(log, f"{i}, before"))
        run(net)
        return log

    ours = logged(lambda net: tl.grad(lambda x: squares(net, given(net), x))(X))
    plain = logged(lambda net: plainly(net, X))
    assert [name for name, _ in ours] == [name for name, _ in plain]
    for (_, our), (_, their) in zip(ours, plain, strict=True):
        assert [g is None for g in our] == [g is None for g in their]
        for mine, other in zip(our, their, strict=True):
            if other is not None:
                torch.testing.assert_close(mine + 0, other)


def test_backward_hook_node_has_torchs_name():
    names = []

    class Looks(nn.Module):
        def forward(self, x):
            names.append((x.grad_fn.name(), type(x.grad_fn).__name__))
            return x.sin()

    module = Looks()
    module.register_full_backward_hook(lambda *_: None)
    tl.grad(lambda x: module(x).sum())(X)
    assert names == [("BackwardHookFunctionBackward",) * 2]


# Nests in which the innermost level does not record for autograd.
FURTHER_OUT = {
    "grad(vmap)": lambda f: tl.grad(lambda p, x: tl.vmap(f, (None, 0))(p, x).sum(), (0, 1)),
    "grad(jvp)": lambda f: tl.grad(
        lambda p, x: tl.jvp(lambda x: f(p, x), (x,), (x.cos(),))[0], (0, 1)
    ),
    "grad(grad), by another": lambda f: tl.grad(
        lambda p, x: tl.grad(lambda z: z * f(p, x))(torch.ones((), dtype=x.dtype)), (0, 1)
    ),
}


@pytest.mark.parametrize("nest", FURTHER_OUT.values(), ids=FURTHER_OUT)
@pytest.mark.parametrize(
    "watched", [kind for kind in BACKWARD if kind != "not full"], indirect=True
)
def test_backward_hooks_of_a_level_further_out(watched, nest):
    found = nest(lambda p, x: squares(watched, p, x))(given(watched), X)
    torch.testing.assert_close(found, plainly(watched, X))


@pytest.mark.parametrize("nest", ["grad(vmap)", "grad(jvp)"])
@pytest.mark.parametrize("watched", ["not full"], indirect=True)
def test_hooks_that_are_not_full_are_refused_further_out(watched, nest):
    with pytest.raises(TransformError, match="Use register_full_backward_hook"):
        FURTHER_OUT[nest](lambda p, x: squares(watched, p, x))(given(watched), X)


def test_a_backward_hook_under_vmap_sees_a_sample():
    seen = []
    module = nn.Tanh()

    def hook(module, inputs, outputs):
        seen.append((inputs[0].shape, outputs[0].shape))
        return (inputs[0] / inputs[0].norm(),)

    module.register_full_backward_hook(hook)

    def f(x):
        return (module(x.sin()) * x).sum()

    found = tl.grad(lambda b: tl.vmap(f)(b).sum())(X)
    assert seen == [(X[0].shape,) * 2]
    for row, x in zip(found, X, strict=True):
        x = x.clone().requires_grad_()
        torch.testing.assert_close(row, torch.autograd.grad(f(x), x)[0])


def test_backward_hooks_do_not_run_without_differentiation():
    called = []
    module = nn.Tanh()
    module.register_full_backward_hook(lambda *_: called.append(True))
    torch.testing.assert_close(tl.vmap(module)(X), X.tanh())
    torch.testing.assert_close(tl.jvp(module, (X,), (X,))[0], X.tanh())
    assert not called


def test_a_module_with_backward_hooks_may_not_write_to_its_argument():
    module = nn.ReLU(inplace=True)
    module.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        tl.grad(lambda x: module(x * 2).sum())(X)
    assert tl.current_stack() == ()
