"""DTensors under each transform, and the placements of the results."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torchlayers as tl
from tests.distributed.nests import close
from tests.distributed.processes import case, over_ranks

F = torch.func


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))


def on_ranks(x, *placements):
    return distribute_tensor(x, mesh(), placements, src_data_rank=None)


def batch(rows=5):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(3))


def f(x):
    return (x.sin() * x).cumsum(1)


def loss(x):
    return (x.sin() ** 2).sum()


def same(found, expected, placement=None):
    assert isinstance(found, DTensor)
    if placement is not None:
        assert found.placements == (placement,)
    close(found.full_tensor(), expected)


@case
def a_tangent_lies_as_its_primal():
    x = batch()
    for placement in (Shard(0), Replicate()):
        value, tangent = tl.jvp(f, (on_ranks(x, placement),), (on_ranks(x.cos(), placement),))
        expected = F.jvp(f, (x,), (x.cos(),))
        same(value, expected[0], placement)
        same(tangent, expected[1], placement)


@case
def a_product_with_the_hessian():
    x = batch()
    found = tl.hvp(loss, (on_ranks(x, Shard(0)),), (on_ranks(x.cos(), Shard(0)),))[0]
    same(found, F.jvp(F.grad(loss), (x,), (x.cos(),))[1], Shard(0))


@case
def a_linear_map_does_not_keep_what_a_shard_holds():
    x = batch()
    sharded = on_ranks(x, Shard(0))
    value, push = tl.linearize(f, sharded)
    expected = F.jvp(f, (x,), (x.cos(),))
    same(value, expected[0], Shard(0))
    for scale in (1, 2):
        same(push(on_ranks(scale * x.cos(), Shard(0))), scale * expected[1], Shard(0))
    weight = torch.ones(3, 2)
    _, push = tl.linearize(lambda w: sharded.cos() @ w, on_ranks(weight, Replicate()))
    same(push(on_ranks(weight, Replicate())), x.cos() @ weight, Shard(0))


@case
def jacobians():
    x = batch(4)
    expected = F.jacrev(f)(x)
    for jacobian in (tl.jacrev, tl.jacfwd):
        for placement in (Shard(0), Shard(1), Replicate()):
            same(jacobian(f)(on_ranks(x, placement)), expected)
    found = tl.jacrev(f)(on_ranks(x, Shard(0)))
    assert found.placements == (Shard(2),)
    same(tl.hessian(loss)(on_ranks(x, Shard(0))), F.hessian(loss)(x))


@case
def chunks_stay_sharded():
    for rows in (1, 4, 5, 9):
        x = batch(rows)
        for size in (1, 2, 3, 100):
            found = tl.vmap(torch.sin, chunk_size=size)(on_ranks(x, Shard(0)))
            same(found, x.sin(), Shard(0))
    x = batch(5)
    found = tl.vmap(lambda x, y: (x + y, x * y), (0, 1), (1, 0), chunk_size=2)(
        on_ranks(x, Shard(0)), on_ranks(x.T.contiguous(), Replicate())
    )
    same(found[0], 2 * x.T, Shard(1))
    same(found[1], x * x, Shard(0))


@case
def chunks_that_are_found_by_measuring_are_the_same_on_all_ranks():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(3))
    for budget in (None, 2000 * (1 + dist.get_rank())):
        found = tl.vmap(torch.sin, chunk_size="auto", memory_budget=budget)(on_ranks(x, Shard(0)))
        same(found, x.sin(), Shard(0))


@case
def gradients_of_samples_in_chunks():
    x = batch(5)
    found = tl.vmap(tl.grad(loss), chunk_size=2)(on_ranks(x, Shard(0)))
    same(found, F.grad(loss)(x), Shard(0))


@case
def different_samples_draw_differently_on_all_ranks():
    x = on_ranks(torch.zeros(8, 3) + 0.5, Shard(0))
    for draw in (torch.rand_like, torch.randn_like, lambda x: x.clone().uniform_()):
        for options in ({}, {"chunk_size": 2}):
            drawn = [
                tl.vmap(draw, randomness="different", **options)(x).full_tensor() for _ in range(2)
            ]
            assert torch.cat(drawn).unique().numel() == 2 * 24
    drawn = tl.vmap(torch.bernoulli, randomness="different")(x.redistribute(placements=[Shard(1)]))
    assert drawn.full_tensor().unique().tolist() == [0, 1]
    # Replicated draws are equal on all ranks, and so are later draws.
    same_on_all = tl.vmap(torch.rand_like, randomness="different")(
        on_ranks(torch.ones(4), Replicate())
    )
    for each in (same_on_all.to_local(), torch.rand(3)):
        total = each.clone()
        dist.all_reduce(total)
        close(total, each * dist.get_world_size())


test_over_ranks = over_ranks(__name__)
