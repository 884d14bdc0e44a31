"""Keys sharded over ranks: draws have the keys' placement, and equal those on one rank."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torchlayers as tl
from tests.distributed.processes import case, over_ranks
from torchlayers import random

K = random.key(0)


def on_ranks(x, placement):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    return distribute_tensor(x, mesh, [placement], src_data_rank=None)


DRAWS = [
    lambda key: random.normal(key, (3,)),
    lambda key: random.uniform(key, (2, 5), torch.float64),
    lambda key: random.split(key, 4),
    lambda key: random.fold_in(key, 7),
]


@case
def numbers_lie_as_their_keys():
    keys = random.split(K, 6)
    for placement in (Shard(0), Replicate()):
        for draw in DRAWS:
            found = tl.vmap(draw)(on_ranks(keys, placement))
            assert isinstance(found, DTensor)
            assert found.placements == (placement,)
            assert torch.equal(found.full_tensor(), tl.vmap(draw)(keys))


@case
def gamma_numbers_lie_as_their_keys():
    keys, a = random.split(K, 6), torch.arange(1.0, 7.0)
    found = tl.vmap(random.gamma)(on_ranks(keys, Shard(0)), on_ranks(a, Shard(0)))
    assert found.placements == (Shard(0),)
    assert torch.equal(found.full_tensor(), tl.vmap(random.gamma)(keys, a))


test_over_ranks = over_ranks(__name__)
