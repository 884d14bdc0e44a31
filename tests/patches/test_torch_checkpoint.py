"""torch.utils.checkpoint inside transforms."""

import functools

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import torchlayers as tl
from tests.remat.functions import custom, functions, layers, of_lists, of_torchs, written
from tests.remat.nests import NESTS, ONE, V, W, X, assert_same, compare, nests


def by_argument(f):
    return lambda x: checkpoint(f, x, use_reentrant=False)


def by_closure(f):
    return lambda x: checkpoint(lambda: f(x), use_reentrant=False)


def to_the_end(f):
    return lambda x: checkpoint(f, x, use_reentrant=False, early_stop=False)


def reentrant(f):
    return lambda x: checkpoint(f, x, use_reentrant=True)


@pytest.mark.sweep
@pytest.mark.parametrize("way", [by_argument, by_closure, to_the_end, reentrant])
@functions
@nests
def test_checkpointing_changes_nothing(nest, function, way):
    compare(nest, way(function), function)


@nests
def test_one_checkpoint_inside_another(nest):
    def f(x):
        return layers(layers(x) * x).sin()

    def nested(x):
        return checkpoint(
            lambda x: layers(checkpoint(layers, x, use_reentrant=False) * x).sin(),
            x,
            use_reentrant=False,
        )

    compare(nest, nested, f)


@nests
def test_one_checkpoint_at_the_beginning_of_another(nest):
    def nested(x):
        inside = functools.partial(checkpoint, layers, use_reentrant=False)
        return checkpoint(inside, x, use_reentrant=False)

    compare(nest, nested, layers)


def test_a_function_is_recomputed_once_a_pass():
    calls = []

    def f(x):
        calls.append(x)
        return layers(x)

    counts = {}
    for name, nest in NESTS.items():
        calls.clear()
        nest(by_argument(f))
        counts[name] = len(calls)
    assert counts["grad"] == counts["vmap(grad)"] == counts["grad(vmap)"] == 2
    assert counts["hessian"] == counts["jvp(grad)"] == counts["grad(jvp)"] == 2
    assert counts["grad(grad)"] == counts["autograd(grad)"] == 3  # two passes


@pytest.mark.parametrize("preserve", [True, False])
def test_random_numbers_are_drawn_again(preserve):
    def f(x):
        return torch.nn.functional.dropout(x.exp(), 0.5).sum()

    def checkpointed(x):
        return checkpoint(f, x, use_reentrant=False, preserve_rng_state=preserve)

    torch.manual_seed(0)
    wanted = tl.vmap(tl.grad(f), randomness="different")(torch.ones(64, 3))
    torch.manual_seed(0)
    found = tl.vmap(tl.grad(checkpointed), randomness="different")(torch.ones(64, 3))
    assert torch.equal(found, wanted) == preserve


KEEPING_PRODUCTS = functools.partial(
    create_selective_checkpoint_contexts, [torch.ops.aten.mv.default, torch.ops.aten.mm.default]
)


# torch's allows only one pass over a region, and no write to a saved result, which torch's linear
# does.
@pytest.mark.parametrize(
    "nest", ["grad", "vjp", "vmap(grad)", "grad(vmap)", "jvp(grad)", "hessian"]
)
@pytest.mark.parametrize("function", [layers, written, of_torchs, of_lists, custom])
def test_selective_checkpointing_changes_nothing(nest, function):
    def kept(x):
        return checkpoint(function, x, use_reentrant=False, context_fn=KEEPING_PRODUCTS)

    compare(NESTS[nest], kept, function, exactly=False)


@pytest.mark.parametrize("around", [lambda f: f, tl.checkpoint], ids=["alone", "in ours"])
@pytest.mark.parametrize("nest", ["grad", "vmap(grad)", "grad(vmap)", "jvp(grad)"])
def test_a_users_hooks_take_what_is_kept(nest, around):
    packed = []

    def halves(x):
        packed.append(x)
        return x / 2

    def with_hooks(respects):
        def kept(x):
            call = functools.partial(checkpoint, respect_saved_tensors_hooks=respects)
            return call(layers, x, use_reentrant=False, context_fn=KEEPING_PRODUCTS)

        def f(x):
            with saved_tensors_hooks(halves, lambda x: x * 2):
                return around(kept)(x * 1)

        return f

    NESTS[nest](with_hooks(False))
    count = len(packed)
    packed.clear()
    compare(NESTS[nest], with_hooks(True), layers, exactly=False)
    assert len(packed) > count


def test_policy_sees_operators_at_the_bottom_of_the_stack():
    asked = []

    def policy(ctx, op, *args, **kwargs):
        asked.append((ctx.is_recompute, op))
        return CheckpointPolicy.PREFER_RECOMPUTE

    def f(x):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(layers, x, use_reentrant=False, context_fn=contexts)

    tl.vmap(tl.grad(f))(torch.stack([X, V]))
    assert (False, torch.ops.aten.tanh.default) in asked


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x):
        return x + self.inside(x)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_blocks_of_a_model_called_with_given_parameters(use_reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double()
    parameters = dict(model.named_parameters())

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            return x

    net = Checkpointed()

    def loss(parameters, x):
        return tl.functional_call(net, parameters, (x,)).square().sum()

    def plain(parameters, x):
        return tl.functional_call(model, parameters, (x,)).square().sum()

    named = {f"blocks.{name}": value.detach() for name, value in parameters.items()}
    torch.manual_seed(1)
    found = tl.vmap(tl.grad(loss), (None, 0), randomness="different")(named, torch.stack([X, V]))
    torch.manual_seed(1)
    wanted = tl.vmap(tl.grad(plain), (None, 0), randomness="different")(
        {name: value.detach() for name, value in parameters.items()}, torch.stack([X, V])
    )
    assert_same(list(found.values()), list(wanted.values()))


def test_sequential_segments():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]).double()

    def f(x):
        return checkpoint_sequential(model, 2, x, use_reentrant=False).sum()

    assert_same(tl.grad(f)(X), tl.grad(lambda x: model(x).sum())(X))


def test_nondeterministic_function_is_an_error():
    calls = []

    def f(x):
        calls.append(x)
        return x.sin().sum() if len(calls) == 1 else x.sum()

    with pytest.raises(RuntimeError, match="different number of tensors was saved"):
        tl.vjp(lambda x: checkpoint(f, x, use_reentrant=False), X)[1](ONE)
    assert tl.current_stack() == ()


def test_offloaded_and_checkpointed():
    def f(x):
        x = x * 1
        with torch.autograd.graph.save_on_cpu():
            return checkpoint(lambda x: torch.tanh(W @ x).sum(), x * 1, use_reentrant=False)

    assert_same(tl.grad(f)(X), tl.grad(lambda x: torch.tanh(W @ x).sum())(X))


class SineOfInnerGrad(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return tl.grad(lambda y: (y * ctx.saved_tensors[0].cos()).sum())(g) * g

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize("way", [by_argument, to_the_end, reentrant])
@nests
def test_gradient_of_a_function_whose_backward_differentiates(nest, way):
    def slope(x):
        return tl.grad(lambda x: (SineOfInnerGrad.apply(x) * x).sum())(x).sum()

    compare(nest, way(slope), slope)


def test_gradient_of_a_function_whose_backward_differentiates_is_right():
    def f(x):
        return checkpoint(tl.grad(SineOfInnerGrad.apply), x, use_reentrant=False)

    x = torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(f)(x), -x.sin())
