"""Networks as functions of operators, parameters and an input; and their parameters."""

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads.workload import Parameters

HEADS = 4
WORDS, CLASSES = 50, 10
LAYERS_A_BLOCK = 4


def mlp(ops: ModuleType, params: Parameters, x: Tensor) -> Tensor:
    """Linear layers with tanh between them; each has a weight and a bias."""
    *hidden, (weight, bias) = zip(params[::2], params[1::2], strict=True)
    for hidden_weight, hidden_bias in hidden:
        x = ops.tanh(ops.linear(x, hidden_weight, hidden_bias))
    return ops.linear(x, weight, bias)


def cnn(ops: ModuleType, params: Parameters, images: Tensor) -> Tensor:
    """The network of examples/digits.py."""
    for kernel, bias in (params[:2], params[2:4]):
        images = ops.max_pool2d(ops.tanh(ops.conv2d(images, kernel, bias)))
    return ops.linear(images.reshape(*images.shape[:-3], -1), *params[4:])


def transformer(ops: ModuleType, params: Parameters, words: Tensor) -> Tensor:
    """Blocks without biases that classify a sequence of words."""
    table, *blocks, read = params
    x = ops.embedding(words, table)
    for first in range(0, len(blocks), LAYERS_A_BLOCK):
        qkv, out, up, down = blocks[first : first + LAYERS_A_BLOCK]
        parts = ops.linear(ops.layer_norm(x), qkv).reshape(*x.shape[:-1], 3, HEADS, -1)
        q, k, v = (parts[..., part, :, :].swapaxes(-3, -2) for part in range(3))
        scores = ops.softmax(q @ k.swapaxes(-2, -1) / q.shape[-1] ** 0.5, -1)
        x = x + ops.linear((scores @ v).swapaxes(-3, -2).reshape(*x.shape), out)
        x = x + ops.linear(ops.relu(ops.linear(ops.layer_norm(x), up)), down)
    return ops.linear(x.mean(-2), read)


def mlp_parameters(widths: list[int], members: tuple[int, ...] = ()) -> Parameters:
    """The parameters of one network, or of several stacked."""
    random = _random(0)
    return [
        tensor
        for narrow, wide in itertools.pairwise(widths)
        for tensor in (random(*members, wide, narrow) / narrow**0.5, random(*members, wide))
    ]


def cnn_parameters() -> Parameters:
    random = _random(0)
    shapes = [(16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (CLASSES, 128), (CLASSES,)]
    return [random(*shape) / max(1, torch.Size(shape[1:]).numel()) ** 0.5 for shape in shapes]


def transformer_parameters(width: int, blocks: int) -> Parameters:
    random = _random(0)
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes = [*block * blocks, (CLASSES, width)]
    return [random(WORDS, width), *(random(*shape) / shape[1] ** 0.5 for shape in shapes)]


def inputs(*shape: int) -> Tensor:
    return _random(1)(*shape)


def integers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(2))


def _random(seed: int) -> Callable[..., Any]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)
