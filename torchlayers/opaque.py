"""Operators that a recording has in another's place, and that inductor calls as they are."""

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


@torch.library.custom_op(
    "torchlayers::random_from", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def random_from(like: Tensor, low: int) -> Tensor:
    """x.random_(low, None), for which there is no other name."""
    return torch.empty_like(like).random_(low, None)


@random_from.register_fake
def _(like: Tensor, low: int) -> Tensor:
    return torch.empty_like(like)
