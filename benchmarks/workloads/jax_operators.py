"""The workloads' operators on JAX."""

from typing import Any

import jax
from jax.nn import relu, sigmoid, silu, softmax
from jax.numpy import add, tanh

__all__ = [
    "add", "attention", "axes_of", "cat", "conv2d", "cross_entropy", "embedding", "gelu",
    "group_norm", "layer_norm", "linear", "max_pool2d", "relu", "sigmoid", "silu", "softmax",
    "tanh", "upsampled", "zeros",
]  # fmt: skip


def axes_of(point: Any) -> Any:
    return jax.numpy.eye(len(point))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = x @ weight.T
    return product if bias is None else product + bias


def embedding(words: Any, table: Any) -> Any:
    return table[words]


def cat(parts: Any, axis: int) -> Any:
    return jax.numpy.concatenate(parts, axis)


def zeros(*shape: int) -> Any:
    return jax.numpy.zeros(shape)


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def conv2d(x: Any, kernel: Any, bias: Any = None, stride: int = 1) -> Any:
    padding = [(kernel.shape[-1] // 2, kernel.shape[-1] // 2)] * 2
    result = jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding)
    return result if bias is None else result + bias[:, None, None]


def max_pool2d(x: Any) -> Any:
    window = (1, 1, 2, 2)
    return jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, window, window, "VALID")


def upsampled(x: Any) -> Any:
    return x.repeat(2, -1).repeat(2, -2)


def layer_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
    normal = jax.nn.standardize(x, axis=-1, epsilon=1e-5)
    return normal if weight is None else normal * weight + bias


def group_norm(x: Any, groups: int, weight: Any, bias: Any) -> Any:
    rows = x.reshape(len(x), groups, -1)
    normal = jax.nn.standardize(rows, axis=-1, epsilon=1e-5).reshape(x.shape)
    return normal * weight[:, None, None] + bias[:, None, None]


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal."""
    scores = q @ k.swapaxes(-2, -1) / q.shape[-1] ** 0.5
    seen = jax.numpy.tri(scores.shape[-1], dtype=bool)
    return softmax(jax.numpy.where(seen, scores, -jax.numpy.inf), -1) @ v


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()
