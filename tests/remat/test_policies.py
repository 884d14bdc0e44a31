"""Policies of torchlayers.checkpoint, and the values that they save."""

import pytest
import torch

import torchlayers as tl
from tests.remat.counters import Counted
from tests.remat.functions import functions
from tests.remat.nests import NESTS, W, X, assert_same, compare
from torchlayers.checkpoint_policies import (
    Choice,
    dots_saveable,
    dots_with_no_batch_dims_saveable,
    everything_saveable,
    nothing_saveable,
    offload_dot_with_no_batch_dims,
    save_and_offload_only_these_names,
    save_any_names_but_these,
    save_anything_except_these_names,
    save_from_both_policies,
    save_only_these_names,
)
from torchlayers.errors import RecomputationError

POLICIES = {
    "nothing": nothing_saveable,
    "everything": everything_saveable,
    "dots": dots_saveable,
    "matrix products": dots_with_no_batch_dims_saveable,
    "matrix products on the host": offload_dot_with_no_batch_dims,
    "named": save_only_these_names("a"),
    "named otherwise": save_any_names_but_these("a"),
    "all but named": save_anything_except_these_names("a"),
    "some named on the host": save_and_offload_only_these_names(
        names_which_can_be_saved=["a"], names_which_can_be_offloaded=["b"]
    ),
    "both": save_from_both_policies(dots_saveable, save_only_these_names("b")),
    "all there is": lambda op, *args, **kwargs: True,
}
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@pytest.mark.sweep
@pytest.mark.parametrize("nest", ["grad", "grad(grad)", "vmap(grad)", "grad(vmap)", "jvp(grad)"])
@functions
@policies
def test_policies_do_not_change_results(policy, function, nest):
    """Equal up to rounding, since small operators are not computed directly while a mode is on."""
    compare(NESTS[nest], tl.checkpoint(function, policy=policy), function, exactly=False)


def named(x):
    a = tl.checkpoint_name(W @ x, "a")
    b = tl.checkpoint_name({"b": a.tanh()}, "b")["b"]
    return (b.exp() * torch.dot(x, b)).sin().sum()


@pytest.mark.parametrize(
    ("policy", "mv", "dot", "tanh"),
    [
        ("nothing", 2, 2, 2),
        ("everything", 1, 1, 1),
        ("dots", 1, 1, 2),
        ("matrix products", 1, 1, 2),
        ("matrix products on the host", 1, 1, 2),
        ("named", 1, 2, 2),
        ("named otherwise", 2, 2, 1),
        ("all but named", 2, 1, 1),
        ("some named on the host", 1, 2, 1),
        ("both", 1, 1, 1),
        ("all there is", 1, 1, 1),
    ],
)
@pytest.mark.parametrize("size", [3, 300])
def test_saved_values_are_not_recomputed(policy, mv, dot, tanh, size):
    def f(x, w):
        a = tl.checkpoint_name(w @ x, "a")
        b = tl.checkpoint_name(a.tanh(), "b")
        return (b.exp() * torch.dot(x, b)).sin().sum()

    x, w = torch.linspace(-1, 1, size), torch.eye(size)
    checkpointed = tl.checkpoint(f, policy=POLICIES[policy])
    with Counted() as counted:  # no gradient by w: its rule would add products
        tl.vjp(lambda x: checkpointed(x, w), x)
    forward = counted.count.copy()
    with Counted() as counted:
        tl.grad(lambda x: checkpointed(x, w))(x)
    with Counted() as without:
        tl.grad(lambda x: f(x, w))(x)
    again = {op: forward[op] + counted.count[op] - without.count[op] for op in forward}
    assert (again["mv"], again["dot"], again["tanh"]) == (mv, dot, tanh)


def test_names_have_no_effect_without_a_policy():
    assert tl.checkpoint_name(X, "a") is X
    compare(NESTS["grad"], tl.checkpoint(named), named)


def test_a_policy_sees_the_operator_and_its_arguments():
    asked = []

    def policy(op, *args, **kwargs):
        asked.append((op, [type(arg) for arg in args]))
        return Choice.RECOMPUTE

    tl.vmap(tl.grad(tl.checkpoint(named, policy=policy)))(torch.stack([X, X]))
    assert (tl.checkpoint_name, [torch.Tensor, str]) in asked
    assert torch.ops.aten.tanh.default in [op for op, _ in asked]


def test_random_numbers_are_redrawn_under_any_policy():
    def f(x):
        return (torch.rand(3) * x).sin().sum() + (torch.randn(3) * x).cos().sum()

    always = tl.checkpoint(f, policy=lambda op, *args, **kwargs: True)
    compare(NESTS["grad"], always, f, exactly=False)


def test_saved_value_overwritten_inside_is_recomputed():
    def f(x):
        y = W @ x
        y.mul_(2)
        return y.sin().sum()

    compare(NESTS["grad(grad)"], tl.checkpoint(f, policy=dots_saveable), f, exactly=False)


def test_saved_value_overwritten_unknown_to_autograd_is_recomputed():
    """No version counter tells of such a write, only the operator that writes."""

    def f(x):
        y = W @ x
        y.data.mul_(2)
        return y.sin().sum()

    def gradient(f):
        return torch.autograd.grad(f(x), x)

    x = X.clone().requires_grad_()
    assert_same(gradient(tl.checkpoint(f, policy=dots_saveable)), gradient(f))


def test_saved_value_overwritten_in_inference_mode_is_recomputed():
    """Its tensors have no version counters."""

    def f(x):
        with torch.inference_mode():
            y = W @ W
            y.mul_(2)
        return (y.clone() @ x).sin().sum()

    compare(NESTS["grad"], tl.checkpoint(f, policy=dots_saveable), f, exactly=False)


def whole(x):
    y = torch.stack([x, x]) @ W
    y.add_(x)
    return (y.sin() @ W).sum()


def parts(x):
    """Of unsafe_chunk, whose results share the memory of the product, and do not say so."""
    a, b = (torch.stack([x, x]) @ W).unsafe_chunk(2, 0)
    a.add_(1.0)
    return (torch.cat([a * b, b]).sin() @ W).sum()


def recurrent(kind):
    torch.manual_seed(0)
    net = kind(3, 3).double().requires_grad_(False)
    return lambda x: net(torch.stack([x, x]).unsqueeze(1))[0].sin().sum()


@pytest.mark.parametrize("nest", ["grad", "vmap(grad)", "grad(vmap)"])
@pytest.mark.parametrize(
    "f",
    [whole, parts, *map(recurrent, (torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN))],
    ids=["whole", "parts", "GRU", "LSTM", "RNN"],
)
def test_saved_product_overwritten_inside_is_recomputed(f, nest):
    """Also where vmap moves it to make room for a value per sample."""
    for policy in (dots_saveable, dots_with_no_batch_dims_saveable):
        compare(NESTS[nest], tl.checkpoint(f, policy=policy), f, exactly=False)


def test_value_that_is_named_after_a_write_is_recomputed():
    def f(x):
        y = W @ x
        y.mul_(2)
        return tl.checkpoint_name(y, "a").sin().sum()

    policy = save_only_these_names("a")
    compare(NESTS["grad(grad)"], tl.checkpoint(f, policy=policy), f, exactly=False)


@pytest.mark.parametrize("product", [lambda x: W @ x, lambda x: torch.stack([x, x])[None] @ W])
def test_saved_value_overwritten_afterwards_is_an_error(product):
    def f(x):
        y, z = tl.checkpoint(lambda x: (y := product(x), y.sin()), policy=dots_saveable)(x)
        y.mul_(2)
        return z.sum()

    with pytest.raises(
        RecomputationError, match=r"saved a result of .*m[vm].* since been modified in place"
    ):
        tl.grad(f)(X)


def test_recomputation_with_another_operator_is_an_error():
    calls = []

    def f(x):
        calls.append(x)
        y = x.sin()
        return (y if len(calls) == 1 else y.tanh()).exp().sum()

    with pytest.raises(RecomputationError, match=r"called aten.tanh.default more often"):
        tl.grad(tl.checkpoint(f, policy=dots_saveable))(X)


def test_nested_checkpoints_have_separate_policies():
    inner = tl.checkpoint(named, policy=dots_saveable)

    def f(x):
        return inner(x * 2) * named(x)

    def plain(x):
        return named(x * 2) * named(x)

    outer = tl.checkpoint(f, policy=save_only_these_names("b"))
    for nest in ("grad", "grad(grad)", "vmap(grad)"):
        compare(NESTS[nest], outer, plain, exactly=False)


def test_half_precision():
    half = X.half()
    found = tl.grad(tl.checkpoint(lambda x: x.sin().sum(), policy=dots_saveable))(half)
    assert_same(found, half.cos(), exactly=False)
