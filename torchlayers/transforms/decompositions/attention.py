"""Decompositions of the fused attention kernels into the definition of attention.

A kernel's further results are residuals for its own backward, which is decomposed as well: so
the logsumexps are computed, and the rest is left empty.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.vjp import vjp


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Returns attention (…, L, E) and the logsumexp of the scores (…, L)."""
    if key.dim() > 2 and key.shape[-3] != query.shape[-3]:  # of groups of heads
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * factor
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if bias is not None:
        allowed = bias.dtype == torch.bool
        scores = scores.masked_fill(~bias, -math.inf) if allowed else scores + bias
    if bias is None:
        return scores.softmax(-1) @ value, scores.logsumexp(-1)
    # A fully masked row has zero attention; its softmax would be NaN.
    blind = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0)
    attention = scores.softmax(-1).masked_fill(blind, 0) @ value
    return attention, scores.logsumexp(-1).masked_fill(blind.squeeze(-1), -math.inf)


def _check(op: str, dropout: float) -> None:
    if dropout:
        raise NotImplementedError(
            f"torchlayers: {op} with dropout_p={dropout} can't be differentiated in forward mode: "
            "its dropout mask is not available outside the kernel. Use dropout_p=0."
        )


def _gradients(
    gradient: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    if bias is None or bias.dtype == torch.bool:

        def by_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _attention(q, k, v, bias, is_causal, scale)[0]

        pulled: Any = vjp(by_three, *inputs)[1]
        return (*pulled(gradient), None)

    def by_four(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return _attention(q, k, v, b, is_causal, scale)[0]

    pulled = vjp(by_four, *inputs, bias)[1]
    four: tuple[Tensor, ...] = pulled(gradient)
    return four


def flash_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    _check("attention", dropout_p)
    return _attention(query, key, value, attn_mask, is_causal, scale)


def flash_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _check("attention", dropout_p)
    return _gradients(grad_out, (query, key, value), attn_mask, is_causal, scale)[:3]


def _flash_results(query: Tensor, key: Tensor, out: Tensor, logsumexp: Tensor) -> tuple[Any, ...]:
    """Adds the further results of the flash attention and cuDNN kernels, empty without dropout."""
    none = torch.empty(0, dtype=torch.int32, device=query.device)
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    mask = query.new_empty(0)
    return out, logsumexp, none, none, query.shape[-2], key.shape[-2], seed, seed, mask


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _check("attention", dropout_p)
    return _flash_results(query, key, *_attention(query, key, value, None, is_causal, scale))


def flash_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, scale: Any = None
) -> tuple[Tensor, ...]:
    dropout_p, is_causal = rest[6], rest[7]
    _check("attention", dropout_p)
    return _gradients(grad_out, (query, key, value), None, is_causal, scale)[:3]


def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _check("attention", dropout_p)
    out, logsumexp = _attention(query, key, value, attn_bias, is_causal, scale)
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    return out, logsumexp, seed, seed


def efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    _check("attention", dropout_p)
    gradients = _gradients(grad_out_, (query, key, value), attn_bias, is_causal, scale)
    return tuple(
        gradient if wanted else None
        for gradient, wanted in zip(gradients, grad_input_mask, strict=True)
    )


def cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _check("attention", dropout_p)
    return _flash_results(query, key, *_attention(query, key, value, attn_bias, is_causal, scale))


def cudnn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    *rest: Any,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    dropout_p, is_causal = rest[4], rest[5]
    _check("attention", dropout_p)
    return _gradients(grad_out, (query, key, value), attn_bias, is_causal, scale)[:3]
