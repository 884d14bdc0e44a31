"""The workloads' operators on torch."""

import torch
import torch.nn.functional as F
from torch import Tensor, add, cat, relu, sigmoid, softmax, tanh
from torch.nn.functional import gelu, group_norm, silu

from benchmarks import device

__all__ = [
    "add", "attention", "axes_of", "cat", "conv2d", "cross_entropy", "embedding", "gelu",
    "group_norm", "layer_norm", "linear", "max_pool2d", "relu", "sigmoid", "silu", "softmax",
    "tanh", "upsampled", "zeros",
]  # fmt: skip


def axes_of(point: Tensor) -> Tensor:
    """Unit vectors, one per row."""
    return torch.eye(len(point), device=point.device)


linear, embedding = F.linear, F.embedding


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device=device.used())


def conv2d(x: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    return F.conv2d(x, kernel, bias, stride, padding=kernel.shape[-1] // 2)


def max_pool2d(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def upsampled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)
