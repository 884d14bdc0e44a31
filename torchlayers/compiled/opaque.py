"""Operators that inductor calls as they are."""

import torch
from torch import Tensor


@torch.library.custom_op(
    "torchlayers::bernoulli", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def bernoulli(like: Tensor, p: float) -> Tensor:
    """aten.bernoulli.p, which inductor makes of one in place, and may read before it is drawn."""
    return torch.bernoulli(like, p)


@bernoulli.register_fake
def _(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like)
