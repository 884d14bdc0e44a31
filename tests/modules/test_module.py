"""Modules as functions of their parameters: torch.func's helpers under our transforms."""

import pytest
import torch
import torch.func
from torch import nn

import torchlayers as tl
from tests.support.calls import Tied, agree, level_of
from torchlayers import modules

X = torch.linspace(-1, 1, 20).reshape(5, 4)


@pytest.mark.parametrize("name", modules.__all__)
def test_functions_are_torch_funcs_own(name):
    assert getattr(tl, name) is getattr(modules, name) is getattr(torch.func, name)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss(net, parameters, x):
    return tl.functional_call(net, parameters, (x,)).square().sum()


def plain_gradients(net, x):
    return torch.autograd.grad(net(x).square().sum(), list(net.parameters()))


def detached(net):
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def test_gradients_by_parameters():
    net = network()
    gradients = agree(lambda tf: tf.grad(lambda p: loss(net, p, X))(detached(net)))
    for got, expected in zip(gradients.values(), plain_gradients(net, X), strict=True):
        torch.testing.assert_close(got, expected)


def test_gradients_by_parameters_that_require_grad():
    net = network()
    gradients = tl.grad(lambda p: loss(net, p, X))(dict(net.named_parameters()))
    for got, expected in zip(gradients.values(), plain_gradients(net, X), strict=True):
        torch.testing.assert_close(got, expected)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_gradient_that_does_not_depend_on_the_parameters_is_recorded_too():
    norm = nn.LayerNorm(4)
    parameters = dict(norm.named_parameters())
    gradients = tl.grad(lambda p: (tl.functional_call(norm, p, (X,)) * X).sum())(parameters)
    for gradient in gradients.values():
        assert gradient.requires_grad
        again = torch.autograd.grad(gradient.sum(), norm.weight)[0]
        torch.testing.assert_close(again, torch.zeros(4))


def test_per_sample_gradients():
    net = network()
    per_sample = tl.vmap(tl.grad(lambda p, x: loss(net, p, x)), in_dims=(None, 0))
    gradients = per_sample(detached(net), X)
    for i, x in enumerate(X):
        for got, expected in zip(gradients.values(), plain_gradients(net, x), strict=True):
            torch.testing.assert_close(got[i], expected)


def test_jvp_and_hessian_by_parameters():
    net = network()
    parameters = detached(net)
    agree(lambda tf: tf.jvp(lambda p: loss(net, p, X), (parameters,), (parameters,)))
    agree(lambda tf: tf.hessian(lambda p: loss(net, p, X))(parameters))


def test_the_module_has_its_own_parameters_back():
    net = network()
    before = dict(net.named_parameters())
    tl.grad(lambda p: loss(net, p, X))(detached(net))
    with pytest.raises(ZeroDivisionError):
        tl.grad(lambda p: loss(net, p, X) / (1 // 0))(detached(net))
    for name, parameter in net.named_parameters():
        assert parameter is before[name]


def test_tied_parameters():
    net = Tied()
    gradients = agree(lambda tf: tf.grad(lambda p: loss(net, p, X))(detached(net)))
    for got, expected in zip(gradients.values(), plain_gradients(net, X), strict=True):
        torch.testing.assert_close(got, expected)


def test_ensembles():
    nets = [nn.Linear(4, 2) for _ in range(3)]
    parameters, buffers = tl.stack_module_state(nets)
    assert buffers == {}

    def run(parameters, x):
        return tl.functional_call(nets[0], parameters, (x,))

    result = agree(lambda tf: tf.vmap(run, in_dims=(0, None))(parameters, X))
    torch.testing.assert_close(result, torch.stack([net(X) for net in nets]))


def test_ensembles_of_modules_with_buffers():
    nets = [nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval() for _ in range(3)]
    for i, net in enumerate(nets):
        net[1].running_mean += i
    parameters, buffers = tl.stack_module_state(nets)

    def run(parameters, buffers, x):
        return tl.functional_call(nets[0], (parameters, buffers), (x,))

    result = agree(lambda tf: tf.vmap(run, in_dims=(0, 0, None))(parameters, buffers, X))
    torch.testing.assert_close(result, torch.stack([net(X) for net in nets]))


def test_gradients_of_an_ensemble():
    nets = [network() for _ in range(3)]
    parameters, _ = tl.stack_module_state(nets)
    gradients = tl.vmap(tl.grad(lambda p, x: loss(nets[0], p, x)), in_dims=(0, None))(parameters, X)
    for i, net in enumerate(nets):
        for got, expected in zip(gradients.values(), plain_gradients(net, X), strict=True):
            torch.testing.assert_close(got[i], expected)


def test_stacked_state_can_be_trained_by_plain_autograd():
    nets = [nn.Linear(4, 2) for _ in range(3)]
    parameters, _ = tl.stack_module_state(nets)

    def run(parameters, x):
        return tl.functional_call(nets[0], parameters, (x,))

    tl.vmap(run, in_dims=(0, None))(parameters, X).square().sum().backward()
    for i, net in enumerate(nets):
        expected = plain_gradients(net, X)[0]
        torch.testing.assert_close(parameters["weight"].grad[i], expected)


def test_batch_norm_that_tracks_can_not_be_batched_and_a_replaced_one_can():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2)))
    x = torch.rand(3, 5, 4)
    with pytest.raises(RuntimeError, match=r"running statistics of a batch norm"):
        tl.vmap(net)(x)
    assert tl.replace_all_batch_norm_modules_(net) is net
    result = agree(lambda tf: tf.vmap(net)(x))
    torch.testing.assert_close(result, torch.stack([net(sample) for sample in x]))


def test_gradients_through_a_replaced_batch_norm():
    net = tl.replace_all_batch_norm_modules_(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    x = torch.rand(3, 5, 4)
    per_batch = tl.vmap(tl.grad(lambda p, x: loss(net, p, x)), in_dims=(None, 0))
    gradients = per_batch(detached(net), x)
    for i in range(3):
        for got, expected in zip(gradients.values(), plain_gradients(net, x[i]), strict=True):
            torch.testing.assert_close(got[i], expected)


def test_debug_unwrap_looks_inside_our_wrappers():
    seen = []

    def f(x):
        seen.append(tl.debug_unwrap(x, recurse=False))
        seen.append(tl.debug_unwrap(x))
        return x.sum()

    tl.vmap(tl.grad(f))(X)
    one_level, every_level = seen
    assert level_of(one_level) == 1
    assert level_of(every_level) == -1
    assert torch.equal(every_level, X)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_debug_unwrap_of_one_level(transform):
    seen = []

    def f(x):
        seen.append(tl.debug_unwrap(x))
        return x.sum()

    {
        "grad": lambda: tl.grad(f)(X),
        "jvp": lambda: tl.jvp(f, (X,), (X,)),
        "vmap": lambda: tl.vmap(f)(X),
    }[transform]()
    assert torch.equal(seen[0], X)
    assert level_of(seen[0]) == -1


@pytest.mark.parametrize("pattern", ["a b -> b a", "a b -> (a b)", "a (b c) -> c a b"])
def test_rearrange_under_transforms(pattern):
    sizes = {"c": 2} if "c" in pattern else {}
    x = X.reshape(5, 2, 2).expand(3, 5, 2, 2).flatten(2) * torch.arange(1.0, 4.0).view(3, 1, 1)

    def rearranged(x):
        return tl.rearrange(x.sin(), pattern, **sizes)

    agree(lambda tf: tf.vmap(rearranged)(x))
    agree(lambda tf: tf.grad(lambda x: rearranged(x).square().sum())(x[0]))
    agree(lambda tf: tf.jvp(rearranged, (x[0],), (x[1],)))
