"""Recomputation of checkpoints in captured graphs (torchlayers.compile)."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.remat.functions import functions
from tests.remat.nests import NESTS, assert_same
from torchlayers.errors import RecomputationError

X = torch.linspace(-1, 1, 300, dtype=torch.float64)
LAYERS = 16


def layer(x):
    return x.sin().exp().tanh().cos()


def network(layer):
    def f(x):
        for _ in range(LAYERS):
            x = layer(x)
        return x.sum()

    return f


def by_argument(f):
    return tl.checkpoint(f)


def by_closure(f):
    return lambda x: tl.checkpoint(lambda: f(x))()


def by_torch(f):
    return lambda x: checkpoint(f, x, use_reentrant=False)


def reentrant(f):
    return lambda x: checkpoint(f, x, use_reentrant=True)


WAYS = [by_argument, by_closure, by_torch, reentrant]
ways = pytest.mark.parametrize("way", WAYS)


def called(graph):
    """Returns how often the graph calls each operator."""
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return Counter(t.overloadpacket.__name__ for t in targets if hasattr(t, "overloadpacket"))


def compiled(f):
    return tl.compile(f, backend="replay")


@pytest.mark.sweep
@ways
def test_each_layer_is_recomputed_and_the_peak_falls(way):
    """Peaks in tensors: 3 per layer without; with, 1 per layer plus the current layer's."""
    plain = tl.compile(tl.grad(network(layer))).lower(X)
    found = tl.compile(tl.grad(network(way(layer)))).lower(X)
    assert called(plain.graph)["exp"] == LAYERS
    assert called(found.graph)["exp"] == 2 * LAYERS - 1  # the last layer's forward value is unused
    assert plain.peak_bytes >= 3 * LAYERS * X.nbytes
    assert found.peak_bytes <= (LAYERS + 4) * X.nbytes


def test_checkpoints_inside_one_another():
    def two(x):
        return tl.checkpoint(layer)(tl.checkpoint(layer)(x))

    def f(x):
        for _ in range(LAYERS // 2):
            x = tl.checkpoint(two)(x)
        return x.sum()

    found = tl.compile(tl.grad(f)).lower(X)
    assert found.peak_bytes <= (LAYERS // 2 + 7) * X.nbytes
    assert_same(compiled(tl.grad(f))(X), tl.grad(network(layer))(X))


@pytest.mark.sweep
@functions
@ways
@pytest.mark.parametrize("nest", ["vmap(grad)", "jvp(grad)", "grad(grad)", "hessian"])
def test_compiled_checkpoints_equal_uncompiled(nest, function, way):
    found = compiled(lambda: NESTS[nest](way(function)))()
    assert_same(found, NESTS[nest](function), exactly=False)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("way", [by_argument, by_closure, by_torch])
def test_plain_autograd_through_a_transform_with_checkpoints(way):
    def gradients(transform):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(transform(tl.grad(network(way(layer))))(x).sum(), x)

    assert_same(gradients(compiled), gradients(lambda f: f), exactly=False)


def with_dropout(x):
    return F.dropout(x.exp(), 0.5).sin()


def with_random_numbers(x):
    noise = torch.rand_like(x)
    noise.mul_(2)  # writes to the random numbers
    return (x * noise).exp() + torch.randn(())


@pytest.mark.parametrize("draws", [with_dropout, with_random_numbers])
@ways
def test_random_numbers_are_drawn_once_and_read_again(draws, way):
    def two(layer):
        return lambda x: layer(layer(x)).sum()

    torch.manual_seed(0)
    wanted = tl.grad(two(draws))(X), torch.rand(3)
    torch.manual_seed(0)
    found = compiled(tl.grad(two(way(draws))))
    first = found(X), torch.rand(3)
    assert_same(first, wanted, exactly=False)
    assert not torch.equal(found(X), first[0])


@pytest.mark.sweep
def test_values_saved_by_a_policy_are_not_recomputed():
    W = torch.eye(300, dtype=torch.float64)

    def f(x):
        return (W @ x.sin()).tanh().exp()

    keeps = tl.checkpoint_policies.dots_saveable
    count = {
        policy: called(tl.compile(tl.grad(network(tl.checkpoint(f, policy)))).lower(X).graph)
        for policy in (None, keeps)
    }
    assert count[None]["mv"] - LAYERS == count[None]["sin"] == count[None]["tanh"] == 2 * LAYERS - 1
    assert count[keeps]["mv"] - LAYERS == count[keeps]["sin"] == LAYERS
    assert count[keeps]["tanh"] == 2 * LAYERS - 1


def test_values_outside_a_checkpoint_are_computed_once():
    def f(x):
        return tl.checkpoint(layer)(x).sum() + (x.exp() * x.exp()).sum()

    # The layer's exp is recomputed; its forward value is unused.
    assert called(tl.compile(tl.grad(f)).lower(X).graph)["exp"] == 1 + 1


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS[:3])  # reentrant ones reject torch.autograd.grad
def test_under_plain_autograd(way):
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(compiled(network(way(layer)))(x), x)
    assert_same(found, tl.grad(network(layer))(X), exactly=False)


@ways
def test_make_fx_capture_has_no_recomputation(way):
    torch.manual_seed(0)
    graph = make_fx(tl.grad(lambda x: way(with_dropout)(x).sum()))(X)
    assert sum(count for name, count in called(graph).items() if "bernoulli" in name) == 1


def test_recomputation_with_other_draws_is_an_error():
    calls = []

    def fickle(x):
        calls.append(x)
        return (x * torch.rand(()) if len(calls) == 1 else x * torch.randn(())).sin().sum()

    with pytest.raises(RecomputationError, match=r"drew random numbers with aten\.randn"):
        compiled(tl.grad(tl.checkpoint(fickle)))(X)
    assert tl.current_stack() == ()
