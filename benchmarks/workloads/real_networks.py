"""Networks of the size that people train, and their parameters.

Each takes its parameters in the order in which it uses them.
"""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads.networks import CLASSES, HEADS, WORDS
from benchmarks.workloads.workload import Parameters

GROUPS = 8  # of a group norm
RESNET, RESNET_18 = ((16, 1), (32, 1), (64, 1)), ((64, 2), (128, 2), (256, 2), (512, 2))
COLOURS, BESIDES = 3, (16, 32, 64)  # an image's channels, and those of the U-Net's levels

Shape = tuple[int, ...]
Stages = tuple[tuple[int, int], ...]  # the channels and number of blocks of each


def language_model(ops: ModuleType, params: Parameters, words: Tensor) -> Tensor:
    """A transformer that predicts each next word, [samples, words, WORDS]."""
    take = iter(params)
    x = ops.add(ops.embedding(words, next(take)), next(take))
    while (first := next(take)).ndim == 1:
        x = _block(ops, first, take, x)
    return ops.linear(x, first, next(take))


def _block(ops: ModuleType, scale: Tensor, take: Iterator[Tensor], x: Tensor) -> Tensor:
    """Attention, and a layer four times as wide, each after a norm and with a skip connection."""
    parts = ops.linear(ops.layer_norm(x, scale, next(take)), next(take), next(take))
    parts = parts.reshape(*x.shape[:-1], 3, HEADS, -1)
    q, k, v = (parts[..., part, :, :].swapaxes(-3, -2) for part in range(3))
    seen = ops.attention(q, k, v).swapaxes(-3, -2).reshape(*x.shape)
    x = x + ops.linear(seen, next(take), next(take))
    wide = ops.linear(ops.layer_norm(x, next(take), next(take)), next(take), next(take))
    return x + ops.linear(ops.gelu(wide), next(take), next(take))


def language_model_parameters(width: int, blocks: int, length: int) -> Parameters:
    block: list[Shape] = [
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    ]  # fmt: skip
    return _parameters([(WORDS, width), (length, width), *block * blocks, (WORDS, width), (WORDS,)])


def resnet(ops: ModuleType, params: Parameters, images: Tensor, stages: Stages) -> Tensor:
    """A residual network with group norms (He 2015); each stage after the first halves the size."""
    take = iter(params)

    def convolved(x: Tensor, stride: int = 1) -> Tensor:
        return ops.group_norm(ops.conv2d(x, next(take), None, stride), GROUPS, *_two(take))

    x = ops.relu(convolved(images))
    for stage, (channels, blocks) in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            beside = x if x.shape[1] == channels else convolved(x, stride)
            x = ops.relu(beside + convolved(ops.relu(convolved(x, stride))))
    return ops.linear(x.mean((-2, -1)), *_two(take))


def resnet_parameters(stages: Stages) -> Parameters:
    before = stages[0][0]
    shapes: list[Shape] = _convolution(COLOURS, before)
    for channels, blocks in stages:
        for _ in range(blocks):
            if before != channels:
                shapes += _convolution(before, channels, 1)
            shapes += _convolution(before, channels) + _convolution(channels, channels)
            before = channels
    return _parameters([*shapes, (CLASSES, before), (CLASSES,)])


def convolutional(ops: ModuleType, params: Parameters, images: Tensor) -> Tensor:
    """Convolutions, each followed by relu and max pooling, and a linear layer."""
    take = iter(params)
    for _ in range(len(params) // 2 - 1):
        images = ops.max_pool2d(ops.relu(ops.conv2d(images, *_two(take))))
    return ops.linear(images.reshape(len(images), -1), *_two(take))


def convolutional_parameters(
    channels: list[int], size: int, members: tuple[int, ...] = ()
) -> Parameters:
    """For square images of that size; of one network, or of several stacked."""
    shapes: list[Shape] = []
    for narrow, wide in itertools.pairwise([COLOURS, *channels]):
        shapes += [(wide, narrow, 3, 3), (wide,)]
    last = channels[-1] * (size >> len(channels)) ** 2
    return _parameters([*shapes, (CLASSES, last), (CLASSES,)], members)


def u_net(ops: ModuleType, params: Parameters, images: Tensor) -> Tensor:
    """Down through the levels and up again, with the images of each level beside those from below
    (Ronneberger 2015)."""
    take = iter(params)

    def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            x = ops.silu(ops.group_norm(ops.conv2d(x, next(take)), GROUPS, *_two(take)))
        return x

    levels = [twice(images)]
    for _ in BESIDES[1:]:
        levels.append(twice(ops.conv2d(levels[-1], *_two(take), 2)))
    x = levels.pop()
    while levels:
        x = twice(ops.cat([levels.pop(), ops.upsampled(x)], 1))
    return ops.conv2d(x, *_two(take))


def u_net_parameters() -> Parameters:
    down = list(itertools.pairwise((COLOURS, *BESIDES)))
    up = [(below + here, here) for here, below in itertools.pairwise(BESIDES)]
    shapes: list[Shape] = []
    for level, (narrow, wide) in enumerate([*down, *reversed(up)]):
        if 0 < level < len(down):
            shapes += [(narrow, narrow, 3, 3), (narrow,)]  # the convolution that halves the size
        shapes += _convolution(narrow, wide) + _convolution(wide, wide)
    return _parameters([*shapes, (COLOURS, BESIDES[0], 3, 3), (COLOURS,)])


def lstm(ops: ModuleType, params: Parameters, words: Tensor) -> Tensor:
    """A recurrent network that predicts the word after the last one (Hochreiter 1997)."""
    table, of_input, of_state, bias, *read = params
    samples, steps = words.shape
    inputs = ops.linear(ops.embedding(words, table), of_input, bias)
    h = c = ops.zeros(samples, of_state.shape[1])
    for step in range(steps):
        gates = (inputs[:, step] + ops.linear(h, of_state)).reshape(samples, 4, -1)
        enter, forget, leave = (ops.sigmoid(gates[:, gate]) for gate in range(3))
        c = forget * c + enter * ops.tanh(gates[:, 3])
        h = leave * ops.tanh(c)
    return ops.linear(h, *read)


def lstm_parameters(width: int) -> Parameters:
    return _parameters(
        [(WORDS, width), (4 * width, width), (4 * width, width), (4 * width,), (WORDS, width),
         (WORDS,)]
    )  # fmt: skip


def _convolution(narrow: int, wide: int, kernel: int = 3) -> list[Shape]:
    """A kernel, and the weight and bias of the group norm after it."""
    return [(wide, narrow, kernel, kernel), (wide,), (wide,)]


def _two(take: Iterator[Any]) -> tuple[Any, Any]:
    return next(take), next(take)


def _parameters(shapes: list[Shape], members: tuple[int, ...] = ()) -> Parameters:
    """Scaled by their fan-in; vectors, which scale or shift, around one half."""
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: Shape) -> Tensor:
        values = torch.randn(*members, *shape, generator=generator)
        return values / 4 + 0.5 if len(shape) == 1 else values / shape[1:].numel() ** 0.5

    return [drawn(torch.Size(shape)) for shape in shapes]
