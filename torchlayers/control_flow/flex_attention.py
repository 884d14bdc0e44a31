"""flex_attention inside transforms, written in ordinary operators that every layer supports.

torch's kernel takes plain tensors only. Its dense implementation has first derivatives only, and
implements them by functions without forward mode.

Source: Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention
    Kernels" (2024), sections 3 and 4.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.transforms.vmap import vmap

_INFINITY = float("inf")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_buffers: tuple[Any, ...] = (),
    mask_mod_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what torch's operator does: the output, and each row's logsumexp and largest score.

    The last two are in base 2, as in torch's kernel. A row whose scores are all masked out has an
    output and derivatives of zero.
    """
    key, value = (_like(query, tensor) for tensor in (key, value))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = scale * (query.to(dtype) @ key.to(dtype).mT)
    places = [torch.arange(size, device=scores.device) for size in scores.shape]
    is_kept = _of_each(block_mask[-1], 0, mask_mod_buffers)(*places, *mask_mod_buffers)
    scores = _of_each(score_mod, 1, score_mod_buffers)(scores, *places, *score_mod_buffers)
    scores = torch.where(is_kept, scores, -_INFINITY)
    largest = scores.max(-1).values
    is_empty = largest == -_INFINITY
    scores = scores.masked_fill(is_empty.unsqueeze(-1), 0.0)
    logsumexp = scores.logsumexp(-1).masked_fill(is_empty, -_INFINITY)
    weights = scores.softmax(-1).masked_fill(is_empty.unsqueeze(-1), 0.0)
    output = weights.to(query.dtype) @ value.to(query.dtype)
    return output, logsumexp / math.log(2), largest / math.log(2)


def _like(query: Tensor, x: Tensor) -> Tensor:
    """Expands a key or value to the query's number of heads and batch size."""
    if x.size(1) != query.size(1):
        x = x.repeat_interleave(query.size(1) // x.size(1), dim=1)
    return x.expand(query.size(0), *x.shape[1:])


def _of_each(
    mod: Callable[..., Tensor], scores: int, buffers: tuple[Any, ...]
) -> Callable[..., Tensor]:
    """Vectorizes a score_mod or mask_mod over the indices of all four dimensions.

    Args:
        mod: takes the score, if it is a score_mod, the index in each dimension, and the buffers.
        scores: 1 if it takes the score, else 0.
        buffers: captured tensors that have been turned into arguments of mod.
    """
    for dim in reversed(range(4)):
        places = [0 if other == dim else None for other in range(4)]
        mod = vmap(mod, (*[0] * scores, *places, *[None] * len(buffers)))
    return mod


def validate_device_of(torchs: Callable[..., None]) -> Callable[..., None]:
    """Replaces the check that refuses gradients on the CPU, where torch has no kernel for them."""

    def validate(*args: Any) -> None:
        if not _C.any_layer():
            torchs(*args)

    return validate
