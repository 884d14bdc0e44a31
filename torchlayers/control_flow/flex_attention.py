"""torch's flex_attention inside a transform: its mathematics, in operators that every layer knows.

torch's own kernel is for plain tensors. Its dense form has derivatives of the first order alone, by
functions that forward mode does not know.

Source: Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention
    Kernels" (2024), sections 3 and 4.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from torchlayers import _C
from torchlayers.core import tracing_state
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
    """What torch's operator returns: the output, and each row's logsumexp and largest score.

    The last two are to the base 2, as in torch's kernel. A row without a score that the mask keeps
    has zeros for output and for derivatives.
    """
    key, value = (_like(query, each) for each in (key, value))
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
    """A key or value with as many heads and batches as the query has."""
    if x.size(1) != query.size(1):
        x = x.repeat_interleave(query.size(1) // x.size(1), dim=1)
    return x.expand(query.size(0), *x.shape[1:])


def _of_each(
    mod: Callable[..., Tensor], scores: int, buffers: tuple[Any, ...]
) -> Callable[..., Tensor]:
    """A score_mod or mask_mod of one score as a function of all, and of places in four dimensions.

    Args:
        mod: takes the score, if it is a score_mod, the place in each dimension, and the buffers.
        scores: 1 if it takes the score, else 0.
        buffers: what it captured, where somebody has made that arguments of it.
    """
    for dim in reversed(range(4)):
        places = [0 if each == dim else None for each in range(4)]
        mod = vmap(mod, (*[0] * scores, *places, *[None] * len(buffers)))
    return mod


# torch's function compiles its operator before it calls it, which Dynamo can't in a layer, and
# refuses gradients on a processor, for which it has no kernel. Neither is so of ours.


def _eagerly(compilation_env: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(compilation_env)
    @contextlib.contextmanager
    def environment() -> Iterator[Any]:
        eager = tracing_state.run_eagerly() if _C.any_layer() else contextlib.nullcontext()
        with compilation_env() as backend, eager:
            yield backend

    return environment


def _outside_layers(check: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(check)
    def checked(*args: Any) -> None:
        if not _C.any_layer():
            check(*args)

    return checked


_module: Any = flex_attention
if hasattr(_module, "setup_compilation_env"):
    _module.setup_compilation_env = _eagerly(_module.setup_compilation_env)
if hasattr(_module, "_validate_device"):
    _module._validate_device = _outside_layers(_module._validate_device)
