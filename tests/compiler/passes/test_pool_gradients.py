"""Gradients of max pooling are masked and summed before they are unpooled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same

X = torch.randn(3, 2, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
UNPOOLED = "max_pool2d_with_indices_backward"


def pooled(x: Tensor, mask: Callable[[Tensor], Tensor] = torch.relu, **options: Any) -> Tensor:
    return F.max_pool2d(mask(x), **{"kernel_size": 2, **options})


def gradient(func: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return tl.grad(lambda x: func(x).square().sum())


def masks_first(names: list[str]) -> bool:
    return "threshold_backward" not in names[names.index(UNPOOLED) :]


MASKED = {
    "relu": pooled,
    "windows that overlap": lambda x: pooled(x, kernel_size=3, stride=1, padding=1),
    "a dilated window": lambda x: pooled(x, dilation=2, stride=3),
    "ceil_mode": lambda x: pooled(x, ceil_mode=True),
    "one image": lambda x: pooled(x[0]),
    "a column of images": lambda x: pooled(x[..., :1], kernel_size=(2, 1)),
    "samples in vmap": lambda x: tl.vmap(lambda x: pooled(x[None]))(x),
    "channels in vmap": lambda x: tl.vmap(pooled, 1, 2)(x[:, :, None]),
    "a constant beside it": lambda x: pooled(x) * pooled(X).detach(),
    "an adaptive pool before": lambda x: pooled(F.adaptive_avg_pool2d(x, 6)),
}
LEFT = {
    "no mask": lambda x: F.max_pool2d(x, 2),
    "the mask of another tensor": lambda x: (
        pooled(x) + pooled(x.flip(0)).flip(0) * x.relu()[..., :3, :4]
    ),
    "what is unpooled is read twice": lambda x: F.max_pool2d(x.relu() + 1, 2) * pooled(x),
    "a mean": lambda x: F.avg_pool2d(x.relu(), 2),
    "a threshold": lambda x: pooled(x, lambda x: F.threshold(x, 0.3, 0.3)),
}


@pytest.mark.parametrize("func", MASKED.values(), ids=MASKED)
def test_masked_before_it_is_unpooled(func):
    graph = same(gradient(func), X)
    assert masks_first(operators(graph))


@pytest.mark.parametrize("func", [*MASKED.values(), *LEFT.values()], ids=[*MASKED, *LEFT])
def test_special_numbers_and_ties(func):
    special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, 1.0, 7.0, -1e-310]
    x = torch.tensor(special, dtype=torch.float64).repeat(42).roll(1).view(X.shape)
    same(gradient(func), x)


@pytest.mark.parametrize("func", LEFT.values(), ids=LEFT)
def test_left_as_it_is(func):
    graph = same(gradient(func), X, exact=False)
    before = operators(tl.compile(gradient(func), backend="replay").lower(X).graph)
    assert operators(graph).count("threshold_backward") == before.count("threshold_backward")


def test_two_pools_of_one_relu():
    """Each is unpooled on its own; the mask of their sum stays behind both."""

    def func(x):
        y = x.relu()
        return F.max_pool2d(y, 2).sum() + F.max_pool2d(y, 3).square().sum()

    assert not masks_first(operators(same(tl.grad(func), X)))


def network(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    for _ in range(2):
        x = F.max_pool2d(F.conv2d(x, weight, bias, padding=1).relu(), 2)
    return x.square().mean()


WEIGHTS = torch.randn(4, 3, 3, 3, 3, generator=torch.Generator().manual_seed(1)).double()
BIASES = torch.linspace(-1, 1, 12).double().view(4, 3)
IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(2)).double()
NETWORKS = {
    "a gradient": (tl.grad(network, (0, 1)), (WEIGHTS[0], BIASES[0], IMAGES)),
    "an ensemble": (tl.vmap(tl.grad(network, (0, 1)), (0, 0, None)), (WEIGHTS, BIASES, IMAGES)),
    "each sample": (
        tl.vmap(tl.grad(network, (0, 1)), (None, None, 0)),
        (WEIGHTS[0], BIASES[0], IMAGES[:, None]),
    ),
    "each sample of each member": (
        tl.vmap(tl.vmap(tl.grad(network, (0, 1)), (None, None, 0)), (0, 0, None)),
        (WEIGHTS, BIASES, IMAGES[:, None]),
    ),
    "a gradient step": (
        tl.grad(lambda w, b, x: network(w - tl.grad(network)(w, b, x), b, x), (0, 1)),
        (WEIGHTS[0], BIASES[0], IMAGES),
    ),
    "a tangent": (
        lambda w, b, x: tl.jvp(lambda w: tl.grad(network, (0, 1))(w, b, x), (w,), (w.sin(),))[1],
        (WEIGHTS[0], BIASES[0], IMAGES),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("fuse_small", [False, True])
@pytest.mark.parametrize(("func", "args"), NETWORKS.values(), ids=NETWORKS)
def test_networks(func, args, fuse_small):
    same(func, *args, exact=False, fuse_small=fuse_small)


@pytest.mark.parametrize("name", ["an ensemble", "each sample"])
def test_the_gradient_of_a_bias_sums_what_is_not_unpooled_yet(name):
    """A bias is added at each place: its gradient is the sum over images."""
    graph = same(NETWORKS[name][0], *NETWORKS[name][1], exact=False)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList):
        source = node.args[0]
        while source.args and str(source.target).split(".")[1] in ("view", "permute", "transpose"):
            source = source.args[0]
        assert UNPOOLED not in str(source.target)


@pytest.mark.parametrize("dim", [2, 3, (0, 2), (1, 3)])
def test_sums_along_one_dimension_of_an_image_are_left(dim):
    graph = same(lambda x: gradient(pooled)(x).sum(dim), X)
    assert operators(graph)[-2:] == [UNPOOLED, "sum"]


def test_sums_of_half_precision_are_left():
    half = X.bfloat16()
    names = operators(same(lambda x: gradient(pooled)(x).sum((2, 3)), half))
    assert "select" not in names


def test_an_output_keeps_its_strides():
    last = X.to(memory_format=torch.channels_last)
    same(gradient(pooled), last)
    same(gradient(pooled), X.mT)
