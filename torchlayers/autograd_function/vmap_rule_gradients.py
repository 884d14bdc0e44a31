"""Converts gradients of a batched Function to the shapes and batch dimensions of its inputs.

NOTE [Gradients of broadcast inputs]
A backward may return a gradient larger than its input, if the input's shape broadcasts to it:
autograd sums over the additional dimensions. With a batch dimension autograd can't, as an input of
shape (B, 4) does not broadcast to (B, 3, 4). So it is summed here, per sample: (3, 4) to (4,).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.errors import FunctionError
from torchlayers.transforms.vmap import vmap


def reductify(
    gradient: Tensor | None,
    dim: int | None,
    in_dim: int | None,
    batch_size: int,
    shape: Sequence[int] | None,
) -> Tensor | None:
    """Converts a gradient with batch dimension `dim` to one for an input with `in_dim`.

    shape is that of one sample of the input, or None if the input is not a tensor.
    """
    if gradient is None or shape is None:
        return gradient
    if in_dim is None:
        return gradient if dim is None else gradient.sum(dim)
    if dim is None:
        gradient, dim = _repeat_samples(gradient, in_dim, batch_size), in_dim
    if gradient.shape[:dim] + gradient.shape[dim + 1 :] == shape:
        return gradient if dim == in_dim else gradient.movedim(dim, in_dim)
    # NOTE [Gradients of broadcast inputs]
    reduced: Tensor = vmap(torch.Tensor.sum_to_size, in_dims=(dim, None), out_dims=in_dim)(
        gradient, shape
    )
    return reduced


def reductify_tangent(
    tangent: Tensor | None, dim: int | None, out_dim: int | None, batch_size: int
) -> Tensor | None:
    """Returns the tangent with the batch dimension where its output has it."""
    if tangent is None or dim == out_dim:
        return tangent
    if out_dim is None:
        raise FunctionError(
            "torchlayers: a jvp staticmethod returned a batched tangent for an output that is not "
            "batched. The output must depend on everything that its tangent depends on."
        )
    if dim is None:
        return _repeat_samples(tangent, out_dim, batch_size)
    return tangent.movedim(dim, out_dim)


def in_dims_of_tangents(in_dims: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Returns the batch dimensions of the tangents: None for an input without a tangent."""
    return [
        None if tangent is None else dim for dim, tangent in zip(in_dims, tangents, strict=True)
    ]


def _repeat_samples(tensor: Tensor, dim: int, batch_size: int) -> Tensor:
    tensor = tensor.unsqueeze(dim)
    shape = list(tensor.shape)
    shape[dim] = batch_size
    return tensor.expand(shape)
