"""Functional collectives of torch, each with its effect on all ranks' tensors in one process."""

import dataclasses
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor

from tests.support.expected_failures import SUM

all_gather = getattr(fc, "all_gather_single", None) or fc.all_gather_tensor
reduce_scatter = getattr(fc, "reduce_scatter_single", None) or fc.reduce_scatter_tensor
gather_list = (
    getattr(fc, "all_gather_single_coalesced", None) or fc.all_gather_into_tensor_coalesced
)
scatter_list = (
    getattr(fc, "reduce_scatter_single_coalesced", None) or fc.reduce_scatter_tensor_coalesced
)


@dataclasses.dataclass(frozen=True)
class Collective:
    of_rank: Callable[[Tensor], Tensor]  # takes this rank's tensor
    of_all: Callable[[Tensor], Tensor]  # takes all ranks' tensors, stacked in front
    shape: tuple[int, ...] = (4, 3)


def blocks(x: Tensor) -> Tensor:
    """Reshapes (source, rows, ...) to (destination, source, rows of a block, ...)."""
    size = x.shape[0]
    return x.unflatten(1, (size, x.shape[1] // size)).transpose(0, 1)


def world() -> dist.ProcessGroup:
    return dist.group.WORLD


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def world_size() -> int:
    return dist.get_world_size()


def ops():
    return torch.ops._c10d_functional


def raw(name: str, *args) -> Callable[[Tensor], Tensor]:
    """Returns a call of the operator and wait_tensor, without AsyncCollectiveTensor."""

    def call(x: Tensor) -> Tensor:
        rest = [each() if callable(each) else each for each in args]
        pending = getattr(ops(), name)(x, *rest, world().group_name)
        return ops().wait_tensor(pending)

    return call


def raw_list(xs: list[Tensor]) -> list[Tensor]:
    pending = ops().all_reduce_coalesced(xs, "sum", world().group_name)
    wait_for_all = getattr(ops(), "wait_tensors", lambda xs: [*map(ops().wait_tensor, xs)])
    return wait_for_all(pending)


def to_everybody(x: Tensor) -> Tensor:
    return x.flatten(0, 1).expand(x.shape[0], *x.flatten(0, 1).shape)


COLLECTIVES = {
    "all_reduce": Collective(
        lambda x: fc.all_reduce(x, "sum", world()), lambda x: x.sum(0).expand_as(x)
    ),
    "all_reduce, the mean": Collective(
        lambda x: fc.all_reduce(x, "avg", world()), lambda x: x.mean(0).expand_as(x)
    ),
    "all_reduce of numbers": Collective(
        lambda x: fc.all_reduce(x, "sum", world()), lambda x: x.sum(0).expand_as(x), shape=()
    ),
    "all_reduce, the operator": Collective(
        raw("all_reduce", "sum"), lambda x: x.sum(0).expand_as(x), shape=(2, 3)
    ),
    "all_reduce, by a ReduceOp": Collective(
        lambda x: fc.all_reduce(x, SUM, world()), lambda x: x.sum(0).expand_as(x)
    ),
    "all_gather": Collective(lambda x: all_gather(x, 0, world()), to_everybody),
    "all_gather in dim 1": Collective(
        lambda x: all_gather(x, 1, world()),
        lambda x: torch.cat([*x], 1).expand(x.shape[0], -1, -1),
    ),
    "all_gather, the operator": Collective(
        raw("all_gather_into_tensor", dist.get_world_size), to_everybody, shape=(3,)
    ),
    "all_gather of the autograd namespace": Collective(
        lambda x: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional_autograd.all_gather_into_tensor(
                x, dist.get_world_size(), world().group_name
            )
        ),
        to_everybody,
        shape=(3,),
    ),
    "reduce_scatter": Collective(
        lambda x: reduce_scatter(x, "sum", 0, world()), lambda x: blocks(x).sum(1)
    ),
    "reduce_scatter, the mean": Collective(
        lambda x: reduce_scatter(x, "avg", 0, world()), lambda x: blocks(x).mean(1)
    ),
    "reduce_scatter in dim 1": Collective(
        lambda x: reduce_scatter(x, "sum", 1, world()),
        lambda x: torch.stack(x.sum(0).chunk(x.shape[0], 1)),
        shape=(3, 4),
    ),
    "all_to_all": Collective(
        lambda x: fc.all_to_all_single(x, None, None, world()),
        lambda x: blocks(x).flatten(1, 2),
    ),
    "all_to_all of uneven parts": Collective(
        lambda x: fc.all_to_all_single(x, *uneven(), world()), lambda x: unevenly(x), shape=(5, 2)
    ),
    "broadcast": Collective(lambda x: fc.broadcast(x, 1, world()), lambda x: x[1].expand_as(x)),
    "permute": Collective(
        lambda x: fc.permute_tensor(
            x, [(i + 1) % world_size() for i in range(world_size())], world()
        ),
        lambda x: x.roll(1, 0),
        shape=(3,),
    ),
    "all_reduce of a list": Collective(
        lambda x: joined(fc.all_reduce_coalesced([x.sin(), x[0], torch.ones(2)], "sum", world())),
        lambda x: (
            torch.cat([x.sin().flatten(1), x[:, 0].flatten(1), torch.ones(x.shape[0], 2)], 1)
            .sum(0)
            .expand(x.shape[0], -1)
        ),
    ),
    "all_reduce of a list, the operators": Collective(
        lambda x: joined(raw_list([x.sin(), torch.ones(2), x * 2])),
        lambda x: (
            torch.cat([x.sin().flatten(1), torch.ones(x.shape[0], 2), x.flatten(1) * 2], 1)
            .sum(0)
            .expand(x.shape[0], -1)
        ),
    ),
    "all_gather of a list": Collective(
        lambda x: joined(gather_list([x.sin(), x[0]], world())),
        lambda x: torch.cat([x.sin().flatten(), x[:, 0].flatten()]).expand(x.shape[0], -1),
    ),
    "reduce_scatter of a list": Collective(
        lambda x: joined(scatter_list([x.sin(), x[:, 0]], "sum", [0, 0], world())),
        lambda x: torch.cat([blocks(x.sin()).sum(1).flatten(1), blocks(x[:, :, 0]).sum(1)], 1),
    ),
}


def uneven() -> tuple[list[int], list[int]]:
    """Returns the row counts from and to each rank: all rows but one go to the next rank."""
    size, rank = world_size(), dist.get_rank()
    sent = [[0] * size for _ in range(size)]
    for i in range(size):
        sent[i][i] = 1
        sent[i][(i + 1) % size] = 4
    return [sent[i][rank] for i in range(size)], sent[rank]


def unevenly(x: Tensor) -> Tensor:
    """Returns the rows that each rank receives, ordered by sender; the last sends to rank 0."""
    last = x.shape[0] - 1
    own = [x[i][4:] if i == last else x[i][:1] for i in range(last + 1)]
    others = [x[i][:4] if i == last else x[i][1:] for i in range(last + 1)]
    received = []
    for to in range(last + 1):
        parts = {to: own[to], (to - 1) % (last + 1): others[to - 1]}
        received.append(torch.cat([parts[source] for source in sorted(parts)]))
    return torch.stack(received)
