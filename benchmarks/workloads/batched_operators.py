"""The workloads' operators on torch, batched by hand: parameters have a sample dimension too.

A loss is the sum of the samples' losses.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, relu, softmax, tanh

from benchmarks.workloads.torch_operators import axes_of, layer_norm

__all__ = [
    "axes_of", "conv2d", "cross_entropy", "embedding", "layer_norm", "linear", "max_pool2d",
    "relu", "softmax", "tanh",
]  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x.flatten(1, -2) @ weight.mT
    if bias is not None:
        product = product + bias.unsqueeze(-2)
    return product.view(*x.shape[:-1], -1)


def embedding(words: Tensor, table: Tensor) -> Tensor:
    samples = torch.arange(len(words), device=words.device).view(-1, *[1] * (words.dim() - 1))
    return table[samples, words]


def conv2d(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Convolves each sample, an image or a batch of one, as a group of a single convolution."""
    samples, channels = kernel.shape[:2]
    image = x.reshape(1, -1, *x.shape[-2:])
    result = F.conv2d(image, kernel.flatten(0, 1), bias.flatten(), padding=1, groups=samples)
    return result.view(samples, 1, channels, *x.shape[-2:])


def max_pool2d(x: Tensor) -> Tensor:
    return F.max_pool2d(x.flatten(0, 1), 2).unflatten(0, x.shape[:2])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
