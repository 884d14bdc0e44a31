"""Operators that are differentiated by decomposition."""

import pytest
import torch

import torchlayers as tl
from torchlayers.transforms import decompositions

X = torch.tensor([0.3, 0.7, 1.2], dtype=torch.float64)
T = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
PRIMS = torch.ops.prims


@pytest.mark.parametrize(
    ("prim", "plain"),
    [
        (PRIMS.sin.default, torch.sin),
        (lambda x: PRIMS.add.default(x, x), lambda x: x + x),
        (lambda x: PRIMS.convert_element_type(x, torch.float32), lambda x: x.float()),
        (lambda x: PRIMS.broadcast_in_dim(x, [2, 3], [1]), lambda x: x.expand(2, 3)),
        (lambda x: PRIMS.sum(x, [0]), lambda x: x.sum()),
        (lambda x: PRIMS.where(x > 0.5, x, x * 2), lambda x: torch.where(x > 0.5, x, x * 2)),
    ],
    ids=["sin", "add", "convert_element_type", "broadcast_in_dim", "sum", "where"],
)
def test_a_prim_has_the_tangent_of_torchs_operator(prim, plain):
    """torch's own kernels of prims lose the tangent."""
    torch.testing.assert_close(tl.jvp(prim, (X,), (T,)), tl.jvp(plain, (X,), (T,)))


def test_a_prim_of_a_batch():
    xs, ts = torch.stack([X, 2 * X]), torch.stack([T, T])
    pushed = tl.vmap(lambda x, t: tl.jvp(PRIMS.sin.default, (x,), (t,)))(xs, ts)
    torch.testing.assert_close(pushed, (xs.sin(), xs.cos() * ts))


def test_the_error_names_the_operator_and_the_way_out():
    x = torch.randn(3, 2)
    with pytest.raises(NotImplementedError) as caught:
        tl.jvp(torch.geqrf, (x,), (x,))
    name = "aten::geqrf"
    for part in ("jvp (level 1)", name, "torchlayers.extend.jvp_rule", "reverse mode"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [f"_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient", "cudnn")],
)
def test_the_kernels_of_devices_that_are_not_here(name):
    """Their decompositions, and those of their backwards, tested on the CPU."""
    q, k, v, g = torch.randn(4, 2, 3, 5, 4, dtype=torch.float64).unbind()
    forward = decompositions.find(f"aten::{name}", "")
    backward = decompositions.find(f"aten::{name}_backward", "")
    attention, *state = run_forward(name, forward, q, k, v)
    plain = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(attention, plain(q, k, v, is_causal=True))
    _, pulled = torch.func.vjp(lambda q, k, v: plain(q, k, v, is_causal=True), q, k, v)
    gradients = run_backward(name, backward, g, q, k, v, attention, state)
    torch.testing.assert_close(tuple(gradients[:3]), pulled(g))


def run_forward(name, forward, q, k, v):
    if "efficient" in name or "cudnn" in name:
        return forward(q, k, v, None, True, 0.0, True)
    return forward(q, k, v, 0.0, True, False)


def run_backward(name, backward, g, q, k, v, attention, state):
    if "efficient" in name:
        logarithms, seed, offset = state
        mask = [True, True, True, False]
        return backward(g, q, k, v, None, attention, logarithms, seed, offset, 0.0, mask, True)
    logarithms, *sequences, seed, offset, _ = state
    if "cudnn" in name:
        at_random = seed, offset
        return backward(g, q, k, v, attention, logarithms, *at_random, None, *sequences, 0.0, True)
    return backward(g, q, k, v, attention, logarithms, *sequences, 0.0, True, seed, offset)
