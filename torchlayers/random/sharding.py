"""Sharding rules of the random operators for DTensor keys: results are sharded as the keys are.

This module is imported when the first such key is used.
"""

from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

_ops: Any = torch.ops.torchlayers
Layouts = list[tuple[list[Any], list[Any]]]


def _of_keys(key: Any, *rest: Any) -> Layouts:
    """Replicated, or sharded along a dimension of the keys; these are the result's first."""
    others = [None] * len(rest)
    return [
        ([placement], [placement, *others])
        for placement in (Replicate(), *map(Shard, range(len(key.shape))))
    ]


def _of_keys_and_parameters(key: Any, *parameters: Any) -> Layouts:
    return [
        ([placement], [placement] * (1 + len(parameters)))
        for placement in (Replicate(), *map(Shard, range(len(key.shape))))
    ]


def _of_keys_and_numbers(key: Any, data: Any) -> Layouts:
    """As for keys; an input that lacks the dimension, or has size 1 there, is replicated."""
    rank = max(len(key.shape), len(data.shape))

    def split(spec: Any, dim: int) -> Any:
        key_dim = dim - rank + len(spec.shape)
        return Shard(key_dim) if key_dim >= 0 and spec.shape[key_dim] > 1 else Replicate()

    along = [([Shard(dim)], [split(key, dim), split(data, dim)]) for dim in range(rank)]
    return [([Replicate()], [Replicate(), Replicate()]), *along]


for _name in ("random_bits", "random_uniform", "random_normal"):
    register_sharding(getattr(_ops, _name).default)(_of_keys)
for _name in ("random_gamma", "random_poisson", "random_binomial"):
    register_sharding(getattr(_ops, _name).default)(_of_keys_and_parameters)
register_sharding(_ops.random_fold_in.default)(_of_keys_and_numbers)
