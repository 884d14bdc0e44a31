"""Gradients for tapped values that do not depend on the differentiated arguments."""

import pytest
import torch

import torchlayers as tl

W = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
CONSTANTS = {
    "captured": lambda x: W,
    "computed": lambda x: W.exp(),
    "detached": lambda x: x.detach().sin(),
    "without grad mode": lambda x: torch.no_grad()(torch.sin)(x),
}
WRAPPED = {
    "plain": lambda f: f,
    "checkpoint": tl.checkpoint,
    "torch's checkpoint": lambda f: (
        lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    ),
}


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("constant", CONSTANTS)
def test_the_gradient_for_a_value_that_does_not_depend_on_the_argument(constant, wrap):
    def f(x):
        return (tl.tap(CONSTANTS[constant](x), "t") * x).sin().sum()

    x = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)
    gradient = tl.grad(WRAPPED[wrap](f), taps="t")
    right = x * (CONSTANTS[constant](x) * x).cos()
    torch.testing.assert_close(gradient(x)[1]["t"], right)
    torch.testing.assert_close(tl.vmap(gradient)(x[None])[1]["t"][0], right)
    torch.testing.assert_close(tl.grad_and_value(f, taps="t")(x)[0][1]["t"], right)
    torch.testing.assert_close(gradient(x)[0], tl.grad(f)(x))


def test_a_tap_where_grad_mode_is_off():
    def f(x):
        with torch.no_grad():
            y = tl.tap(x.sin(), "t")
        return (y * x).sum()

    x = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)
    gradient, taps = tl.grad(f, taps="t")(x)
    torch.testing.assert_close(taps["t"], x)
    torch.testing.assert_close(gradient, x.sin())


def test_a_constant_in_inner_vmaps_and_loops():
    x = torch.tensor(2.0, dtype=torch.float64)

    def mapped(x):
        return x * tl.vmap(lambda w: tl.tap(w, "t") ** 2)(W).sum()

    def scanned(x):
        return tl.scan(lambda c, w: (tl.tap(w, "t") * c, None), x, W)[0]

    torch.testing.assert_close(tl.grad(mapped, taps="t")(x)[1]["t"], 2 * x * W)
    torch.testing.assert_close(tl.grad(scanned, taps="t")(x)[1]["t"], x * W.prod() / W)


def test_a_constant_of_another_dtype_keeps_it():
    half = torch.tensor(3.0, dtype=torch.float16)

    def f(z):
        y = tl.tap(half, "t")
        assert y.dtype is torch.float16
        return y * z.abs().sum()

    z = torch.tensor([3 + 4j, 1 + 0j])
    assert tl.grad(f, taps="t")(z)[1]["t"] == 6


def test_the_gradient_by_the_features_of_a_frozen_backbone():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).requires_grad_(False)
    head = {f"1.{name}": p for name, p in net[1].named_parameters()}

    def f(head):
        return tl.functional_call(net, head, (torch.ones(3),)).sum()

    torch.testing.assert_close(tl.grad(f, taps="0")(head)[1]["0"], net[1].weight[0])
    compiled = tl.compile(tl.grad(f, taps="0"), backend="replay")
    torch.testing.assert_close(compiled(head)[1]["0"], net[1].weight[0])
