"""Gradients of a batched Function, brought to the shape and the batch dimension of its inputs.

NOTE [Gradients of broadcast inputs]
A backward may return a gradient larger than its input, if the input's shape broadcasts to it:
autograd sums what is too much. With a batch dimension in it, it can't: a gradient of shape
(B, 3, 4) does not come from broadcasting an input of (B, 4). So it is summed here, as one
sample's: (3, 4) to (4,).
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
    """The gradient, whose batch is in `dim`, for an input whose batch is in `in_dim`.

    shape is that of one sample of the input; None stands for an input that is no tensor.
    """
    if gradient is None or shape is None:
        return gradient
    if in_dim is None:
        return gradient if dim is None else gradient.sum(dim)
    if dim is None:
        gradient, dim = _repeated(gradient, in_dim, batch_size), in_dim
    # NOTE [Gradients of broadcast inputs]
    reduced: Tensor = vmap(torch.Tensor.sum_to_size, in_dims=(dim, None), out_dims=in_dim)(
        gradient, shape
    )
    return reduced


def reductify_tangent(
    tangent: Tensor | None, dim: int | None, out_dim: int | None, batch_size: int
) -> Tensor | None:
    """The output's tangent, with its batch where the output has it."""
    if tangent is None or dim == out_dim:
        return tangent
    if out_dim is None:
        raise FunctionError(
            "torchlayers: a jvp staticmethod returned a batched tangent for an output that is not "
            "batched. The output has to depend on all that its tangent depends on."
        )
    if dim is None:
        return _repeated(tangent, out_dim, batch_size)
    return tangent.movedim(dim, out_dim)


def in_dims_of_tangents(in_dims: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """An input without a tangent has no batch dimension in it either."""
    return [
        None if tangent is None else dim for dim, tangent in zip(in_dims, tangents, strict=True)
    ]


def _repeated(tensor: Tensor, dim: int, batch_size: int) -> Tensor:
    tensor = tensor.unsqueeze(dim)
    shape = list(tensor.shape)
    shape[dim] = batch_size
    return tensor.expand(shape)
