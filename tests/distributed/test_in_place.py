"""In-place collectives of torch.distributed on tensors of a transform: run, or a clear error."""

import pytest
import torch
import torch.distributed as dist

import torchlayers as tl
from tests.distributed.nests import ALL, close, everybodys
from tests.distributed.processes import case, over_ranks
from tests.distributed.samples import Collective, blocks, to_everybody


def all_reduce(x):
    y = x * 1
    dist.all_reduce(y)
    return y


def all_reduce_later(x):
    y = x * 1
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y


def broadcast(x):
    y = x * 1
    dist.broadcast(y, 1)
    return y


def all_gather(x):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def all_gather_into(x):
    whole = torch.zeros_like(x).repeat(dist.get_world_size(), 1)
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def reduce_scatter_into(x):
    part = torch.zeros_like(x[: x.shape[0] // dist.get_world_size()])
    dist.reduce_scatter_tensor(part, x.contiguous())
    return part


def reduce_scatter(x):
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size())]
    part = torch.zeros_like(parts[0])
    dist.reduce_scatter(part, parts)
    return part


def all_to_all(x):
    received = torch.zeros_like(x)
    dist.all_to_all_single(received, x.contiguous())
    return received


IN_PLACE = {
    "all_reduce": Collective(all_reduce, lambda x: x.sum(0).expand_as(x)),
    "all_reduce, waited for": Collective(all_reduce_later, lambda x: x.sum(0).expand_as(x)),
    "broadcast": Collective(broadcast, lambda x: x[1].expand_as(x)),
    "all_gather": Collective(all_gather, to_everybody),
    "all_gather_into_tensor": Collective(all_gather_into, to_everybody),
    "reduce_scatter_tensor": Collective(reduce_scatter_into, lambda x: blocks(x).sum(1)),
    "reduce_scatter": Collective(reduce_scatter, lambda x: blocks(x).sum(1)),
    "all_to_all_single": Collective(all_to_all, lambda x: blocks(x).flatten(1, 2)),
}
FEW = ("value", "grad", "jvp", "hvp", "jacrev", "hessian", "vmap", "vmap of grad", "grad of vmap")


def compare(nest: str, name: str) -> None:
    c = IN_PLACE[name]
    of_rank, of_all = ALL[nest]
    x = everybodys(c.shape, dist.get_world_size(), nest)
    rank = dist.get_rank()
    close(of_rank(c.of_rank)(x[rank]), of_all(c.of_all)(x)[rank])


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("nest", FEW)
def test_an_in_place_collective_is_its_functional_one(ranks, nest, name):
    ranks.run(__name__, "compare", nest, name)


def parts_at_the_first(x):
    return [x] * dist.get_world_size() if dist.get_rank() == 0 else None


def neighbour():
    return dist.get_rank() ^ 1


REFUSED = {
    "reduce": lambda x: dist.reduce(x, 0),
    "gather": lambda x: dist.gather(x, parts_at_the_first(x)),
    "scatter": lambda x: dist.scatter(x, parts_at_the_first(x)),
    "send": lambda x: dist.send(x, neighbour()),
    "recv": lambda x: dist.recv(x, neighbour()),
}


@case
def one_way_collectives_are_refused_by_name():
    for name, call in REFUSED.items():

        def f(x, call=call):
            y = x * 1
            call(y)
            return y.sum()

        for run in (tl.grad(f), lambda x, f=f: tl.jvp(f, (x,), (x,)), tl.vmap(f)):
            with pytest.raises(NotImplementedError, match=f"torch.distributed.{name} can't run"):
                run(torch.ones(2, 2))


@case
def a_captured_tensor_is_not_written_to():
    captured = torch.ones(dist.get_world_size())

    def f(x):
        dist.all_gather_into_tensor(captured, x[:1].contiguous())
        return captured.sum()

    with pytest.raises(RuntimeError, match="captured"):
        tl.grad(f)(torch.ones(2))


@case
def constants_are_reduced_where_they_lie():
    """Tensors that a transform does not track may be reduced, as outside transforms."""
    seen = torch.ones(2)

    def f(x):
        dist.all_reduce(seen)
        return (x * seen).sum()

    size = dist.get_world_size()
    assert tl.grad(f)(torch.ones(2)).tolist() == [size, size]


test_over_ranks = over_ranks(__name__)
