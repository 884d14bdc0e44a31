"""Dead code elimination: unused values are not computed."""

import torch
from torch import Tensor

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same

aten = torch.ops.aten


def test_unused_operators_are_removed():
    assert operators(same(lambda x: (x.exp().sin(), x.cos())[1], torch.randn(3))) == ["cos"]


def test_unused_gradients_are_masked_out():
    def func(given: Tensor, image: Tensor, weight: Tensor) -> Tensor:
        options = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
        return aten.convolution_backward(given, image, weight, [4], *options)[1]

    sizes = (2, 4, 5, 5), (2, 3, 5, 5), (4, 3, 3, 3)
    graph = same(func, *map(torch.randn, sizes))
    (node,) = [node for node in graph.graph.nodes if "convolution" in str(node.target)]
    assert node.args[-1] == [False, True, False]


def test_masked_gradients_stay_masked():
    def func(given: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        mean, rstd = x.mean(-1, keepdim=True), x.var(-1, keepdim=True).rsqrt()
        mask = [True, True, False]
        results = aten.native_layer_norm_backward(given, x, [4], mean, rstd, weight, None, mask)
        return results[0], results[1]

    same(func, torch.randn(3, 4), torch.randn(3, 4), torch.randn(4))


def test_weights_read_only_for_their_size_are_not_copied():
    def loss(weight: Tensor, image: Tensor) -> Tensor:
        return torch.conv2d(image[None], weight, padding=1).sin().sum()

    gradients = tl.vmap(tl.grad(loss), (None, 0))
    graph = same(gradients, torch.randn(4, 3, 3, 3), torch.randn(2, 3, 5, 5))
    assert "empty" in operators(graph)
    assert "clone" not in operators(graph)
