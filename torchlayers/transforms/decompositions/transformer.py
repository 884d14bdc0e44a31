"""Decompositions of the transformer modules' fast path, which runs if nothing requires grad."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Mask types: (L, S) for all batch elements, (N, S) for padding keys; else the mask's shape decides.
_SOURCE, _PADDING = 0, 1


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns attention (N, L, E) and its weights, averaged over the heads if requested."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (_heads(F.linear(x, weight, bias), num_head) for x, weight, bias in parts)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(_broadcast_mask(mask, mask_type), -math.inf)
    weights = scores.softmax(-1)
    joined = (weights @ v).transpose(1, 2).flatten(2)
    if not need_weights:
        weights = query.new_empty(0)
    elif average_attn_weights:
        weights = weights.mean(1)
    return F.linear(joined, proj_weight, proj_bias), weights


def _heads(x: Tensor, count: int) -> Tensor:
    """Reshapes (N, L, E) to (N, count, L, E / count)."""
    return x.view(*x.shape[:-1], count, -1).transpose(1, 2)


def _broadcast_mask(mask: Tensor, mask_type: int | None) -> Tensor:
    hidden = mask.bool()
    if mask_type == _PADDING:
        return hidden[:, None, None, :]
    return hidden if mask_type == _SOURCE or hidden.dim() == 4 else hidden[:, None]


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Applies one encoder layer, from (N, L, E) to (N, L, E)."""

    def attend(x: Tensor) -> Tensor:
        attention, _ = multi_head_attention(
            x,
            x,
            x,
            embed_dim,
            num_heads,
            qkv_weight,
            qkv_bias,
            proj_weight,
            proj_bias,
            mask,
            need_weights=False,
            mask_type=mask_type,
        )
        return attention

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return torch.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return torch.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))
