"""Networks with constant parameters, as functions of their input alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LAYERS = 4


@dataclass(frozen=True)
class Network:
    name: str
    function: Callable[[Tensor], Tensor]
    input: Tensor


def mlp(width: int, batch: int) -> Network:
    """Four linear layers, with tanh after each."""
    generator = torch.Generator().manual_seed(0)
    layers = [
        (
            torch.randn(width, width, generator=generator) / width**0.5,
            torch.randn(width, generator=generator) / width**0.5,
        )
        for _ in range(LAYERS)
    ]

    def function(x: Tensor) -> Tensor:
        for weight, bias in layers:
            x = F.linear(x, weight, bias).tanh()
        return x

    return Network(
        f"MLP, {width} wide, batch {batch}",
        function,
        torch.randn(batch, width, generator=generator),
    )


def cnn(channels: int, batch: int) -> Network:
    """Two convolutions with pooling on images of 3 x 32 x 32, and a linear layer."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(channels, 3, 3, 3, generator=generator) / 5
    second = torch.randn(2 * channels, channels, 3, 3, generator=generator) / 10
    weight = torch.randn(10, 2 * channels * 64, generator=generator) / 10

    def function(x: Tensor) -> Tensor:
        for kernel in (first, second):
            x = F.max_pool2d(F.conv2d(x, kernel, padding=1).relu(), 2)
        return F.linear(x.flatten(1), weight)

    return Network(
        f"CNN, {channels} and {2 * channels} channels, batch {batch}",
        function,
        torch.randn(batch, 3, 32, 32, generator=generator),
    )
