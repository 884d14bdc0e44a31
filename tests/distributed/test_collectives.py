"""torch's functional collectives under each transform, against one process with all tensors."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

import torchlayers as tl
from tests.distributed.nests import ALL, close, everybodys
from tests.distributed.processes import case, over_ranks
from tests.distributed.samples import COLLECTIVES
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes.graph_queries import communicates
from torchlayers.distributed import counting
from torchlayers.fx.cse import share_common


def compare(nest: str, name: str) -> None:
    c = COLLECTIVES[name]
    of_rank, of_all = ALL[nest]
    x = everybodys(c.shape, dist.get_world_size(), nest)
    rank = dist.get_rank()
    close(of_rank(c.of_rank)(x[rank]), of_all(c.of_all)(x)[rank])


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("nest", ALL)
def test_a_nest_over_a_collective_is_that_of_all_ranks(ranks, nest, name):
    ranks.run(__name__, "compare", nest, name)


def total(x):
    return fc.all_reduce(x, "sum", dist.group.WORLD)


@case
def a_batch_is_one_collective():
    with counting() as calls:
        tl.vmap(total)(torch.ones(5, 2))
    assert calls.names == ["all_reduce"]


@case
def a_value_and_its_tangent_are_one_collective():
    with counting() as calls:
        tl.jvp(total, (torch.ones(5),), (torch.ones(5),))
    assert calls.names == ["all_reduce_coalesced"]


@case
def a_jacobian_is_one_collective_each_way():
    with counting() as calls:
        tl.jacrev(lambda x: total(x.sin()))(torch.ones(5))
    assert calls.names == ["all_reduce", "all_reduce"]


@case
def a_maximum_is_refused_in_reverse_mode():
    def largest(x):
        return fc.all_reduce(x, "max", dist.group.WORLD)

    assert largest(torch.ones(2)).tolist() == [1, 1]
    for transform in (tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))):
        with pytest.raises(RuntimeError, match="only 'sum' and 'avg' are linear"):
            transform(lambda x: largest(x).sum())(torch.ones(2))


@case
def a_maximum_of_a_batch_is_each_samples():
    rank = dist.get_rank()
    x = torch.arange(6.0).view(3, 2) * (1 if rank else -1)
    found = tl.vmap(lambda x: fc.all_reduce(x, "max", dist.group.WORLD))(x)
    assert found.equal(torch.arange(6.0).view(3, 2))


@case
def a_sample_without_dimensions_is_refused_where_they_are_split():
    gather = torch.ops._c10d_functional.all_gather_into_tensor
    group = dist.group.WORLD.group_name
    with pytest.raises(RuntimeError, match="the samples have no dimensions"):
        tl.vmap(lambda x: gather(x, dist.get_world_size(), group))(torch.ones(3))


@case
def what_was_reduced_may_be_written_to():
    """The derivative rule reads neither the argument nor the result."""

    def f(x):
        sent = x * 3
        y = total(sent)
        sent.zero_()
        return y.mul_(2).sum()

    size = dist.get_world_size()
    assert tl.grad(f)(torch.ones(2)).tolist() == [6.0 * size] * 2


@case
def a_linear_map_sends_at_each_call():
    _, push = tl.linearize(lambda x: total(x.sin()), torch.ones(3))
    for _ in range(2):
        with counting() as calls:
            pushed = push(torch.ones(3))
        assert calls.names == ["all_reduce_coalesced"]
    close(pushed, dist.get_world_size() * torch.ones(3).cos())


@case
def two_equal_collectives_of_a_recording_stay_two():
    """Deduplication would change how often a rank takes part in a collective."""
    compiled = tl.compile(lambda x: total(x) * total(x))
    for _ in range(2):
        close(compiled(torch.ones(3)), torch.full((3,), float(dist.get_world_size() ** 2)))
    recorded = record(lambda x: total(x) * total(x), (torch.ones(3),))
    assert communicates(recorded.graph)
    share_common(recorded.graph)
    targets = [str(node.target) for node in recorded.graph.graph.nodes]
    assert targets.count("_c10d_functional.all_reduce.default") == 2


@case
def a_module_of_ddp_is_called_with_a_warning():
    module = torch.nn.Linear(2, 1)
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    given = {f"module.{name}": value for name, value in module.named_parameters()}
    with pytest.warns(UserWarning, match="each rank gets the gradient of its own data alone"):
        tl.functional_call(parallel, given, (torch.ones(3, 2),))


test_over_ranks = over_ranks(__name__)
