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
    return [([each], [each, *others]) for each in (Replicate(), *map(Shard, range(len(key.shape))))]


def _of_keys_and_parameters(key: Any, *parameters: Any) -> Layouts:
    return [
        ([each], [each] * (1 + len(parameters)))
        for each in (Replicate(), *map(Shard, range(len(key.shape))))
    ]


def _of_keys_and_numbers(key: Any, data: Any) -> Layouts:
    """As for keys; an input that lacks the dimension, or has size 1 there, is replicated."""
    rank = max(len(key.shape), len(data.shape))

    def split(spec: Any, dim: int) -> Any:
        own = dim - rank + len(spec.shape)
        return Shard(own) if own >= 0 and spec.shape[own] > 1 else Replicate()

    along = [([Shard(dim)], [split(key, dim), split(data, dim)]) for dim in range(rank)]
    return [([Replicate()], [Replicate(), Replicate()]), *along]


for _name in ("random_bits", "random_uniform", "random_normal"):
    register_sharding(getattr(_ops, _name).default)(_of_keys)
for _name in ("random_gamma", "random_poisson", "random_binomial"):
    register_sharding(getattr(_ops, _name).default)(_of_keys_and_parameters)
register_sharding(_ops.random_fold_in.default)(_of_keys_and_numbers)
