"""DTensors created, redistributed and made local inside transforms, also by torch's modules."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torchlayers as tl
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import close, mesh, numbers, placed, same
from torchlayers.distributed import counting, distribute_tensor
from torchlayers.errors import TransformError

F = torch.func


def rows():
    """Returns a square matrix whose size is divisible by the number of ranks."""
    return numbers(2 * dist.get_world_size(), 2 * dist.get_world_size())


def inputs():
    return numbers(5, 3)


def total(x):
    """Returns a weighted sum of the full tensor."""
    return (x.sin() * torch.arange(1.0, x.numel() + 1).view(x.shape)).sum()


CALLS = {
    "full_tensor": lambda x: x.full_tensor(),
    "redistribute and to_local": lambda x: x.redistribute(placements=[Replicate()]).to_local(),
    "redistribute, twice": lambda x: x.redistribute(placements=[Shard(-1)]).full_tensor(),
    "after an operator": lambda x: (x * 2).full_tensor() / 2,
    "from_local": lambda x: DTensor.from_local(x.to_local(), mesh(), x.placements).full_tensor(),
    "from_local of a part": lambda x: DTensor.from_local(
        x.redistribute(placements=[Replicate()]).to_local(), mesh(), [Partial("avg")]
    ).full_tensor(),
}
PLACEMENTS = (Shard(0), Shard(1), Replicate())


@case
def what_is_placed_anew_has_the_derivatives_of_what_it_holds():
    x = rows()
    gradient, product = F.grad(total)(x), F.jvp(F.grad(total), (x,), (x.cos(),))[1]
    for name, call in CALLS.items():
        for placement in PLACEMENTS:
            if name.startswith("from_local of") and placement != Replicate():
                continue

            def f(x, call=call):
                return total(call(x))

            primal, tangent = placed(x, placement), placed(x.cos(), placement)
            same(tl.grad(f)(primal), gradient, placement)
            close(tl.jvp(f, (primal,), (tangent,))[1], (gradient * x.cos()).sum())
            same(tl.hvp(f, (primal,), (tangent,))[0], product, placement)
            models = placed(torch.stack([x, 2 * x]), *[_behind(placement)])
            same(tl.vmap(tl.grad(f))(models), F.vmap(F.grad(total))(torch.stack([x, 2 * x])))


def _behind(placement):
    return Shard(placement.dim + 1) if isinstance(placement, Shard) else placement


@case
def a_tensor_of_a_level_says_how_it_lies():
    def f(x):
        assert x.placements == (Shard(0),)
        assert x.device_mesh == mesh()
        return x.to_local()

    x = rows()
    assert tl.vjp(f, placed(x, Shard(0)))[0].shape == (2, x.shape[1])
    # With the batch in front, the rows of a sample are the second dimension.
    found = tl.vmap(f)(placed(torch.stack([x] * 2), Shard(1)))
    assert found.shape == (2, 2, x.shape[1])
    for tensor in (torch.ones(2), torch.nn.Parameter(torch.ones(2))):
        assert not hasattr(tensor, "to_local")
        assert not hasattr(tensor, "placements")
    assert tl.vmap(lambda x: x * hasattr(x, "full_tensor"))(torch.ones(3)).tolist() == [0, 0, 0]


@case
def constants_are_placed_too():
    x = rows()

    def f(w):
        scaled = placed_inside.redistribute(placements=[Replicate()]).to_local() * w
        return (scaled + DTensor.from_local(x, mesh(), [Replicate()]).to_local()).sum()

    placed_inside = placed(x, Shard(0))
    close(tl.grad(f)(torch.tensor(2.0)), x.sum())


@case
def distribute_tensor_takes_tensors_of_a_level():
    x = rows()
    for placement in (*PLACEMENTS, Shard(-1)):

        def f(x, placement=placement):
            return total(distribute_tensor(x, mesh(), [placement]).full_tensor())

        close(f(x), total(x))
        close(tl.grad(f)(x), F.grad(total)(x))
        close(tl.hvp(f, (x,), (x.cos(),))[0], F.jvp(F.grad(total), (x,), (x.cos(),))[1])
        close(
            tl.vmap(tl.grad(f))(torch.stack([x, x * 2])),
            F.vmap(F.grad(total))(torch.stack([x, x * 2])),
        )


@case
def a_sharded_batch_can_not_be_placed_sample_by_sample():
    with pytest.raises(TransformError, match="Pass mesh= to vmap"):
        tl.vmap(lambda x: x.to_local())(placed(rows(), Shard(0)))


@case
def gradients_lie_as_their_arguments():
    """Also for gradients that are partial sums; a plain tensor has a plain gradient."""
    x, scale = rows(), torch.tensor(1.5)

    def f(s, w, x):
        return ((x * w).sum() * s).sin() + (w * s).sum()

    expected = F.grad(f, (0, 1, 2))(scale, x.cos(), x)
    product = F.jvp(F.grad(lambda s: f(s, x.cos(), x)), (scale,), (scale,))[1]

    def placed_loss(s, w, x):
        value = f(s, w, x)
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    for placement in PLACEMENTS:
        batch = placed(x, placement)
        for lies in PLACEMENTS:
            given = placed(scale, Replicate()), placed(x.cos(), lies), batch
            found = tl.grad(placed_loss, (0, 1, 2))(*given)
            for each, other, argument in zip(found, expected, given, strict=True):
                same(each, other, argument.placements[0])
            _, pull = tl.vjp(placed_loss, *given)
            same(pull(torch.tensor(1.0))[0], expected[0], Replicate())

            def of_scale(s, given=given):
                return placed_loss(s, *given[1:])

            same(tl.hvp(of_scale, given[:1], given[:1])[0], product, Replicate())
            several = placed(torch.stack([scale, scale]), Replicate())
            same(tl.vmap(tl.grad(of_scale))(several), expected[0].expand(2), Replicate())
            found = tl.grad(of_scale)(scale)
            assert not isinstance(found, DTensor)
            close(found, expected[0])


@case
def gradients_that_come_as_parts_are_summed_in_one_collective():
    batch = placed(rows(), Shard(0))
    weights = {name: placed(rows() * scale, Replicate()) for scale, name in enumerate("abc", 1)}

    def f(w):
        return ((batch @ w["a"] @ w["b"]) @ w["c"]).sin().sum().full_tensor()

    with counting() as sent:
        found = tl.grad(f)(weights)
    assert all(each.placements == (Replicate(),) for each in found.values())
    assert sent.names.count("psum_invariant_each") == 1


# ---- parallelize_module


def network():
    torch.manual_seed(0)
    hidden = 2 * dist.get_world_size()
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def parallel():
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(copy.deepcopy(network()), mesh(), plan)


def parameters(module):
    return {name: value.detach() for name, value in module.named_parameters()}


def loss(module, call):
    return lambda p, x: (call(module, p, (x,)) ** 2).sum()


@case
def a_parallel_module_by_its_parameters():
    x = inputs()
    module = parallel()
    ours, given = loss(module, tl.functional_call), parameters(module)
    theirs, expected = loss(network(), F.functional_call), parameters(network())
    cosines = {name: value.cos() for name, value in given.items()}
    expected_cosines = {name: value.cos() for name, value in expected.items()}

    def compare(found, wanted):
        for name, value in wanted.items():
            same(found[name], value)

    gradients = tl.grad(ours)(given, x)
    compare(gradients, F.grad(theirs)(expected, x))
    assert all(gradients[name].placements == given[name].placements for name in given)
    product = tl.hvp(lambda p: ours(p, x), (given,), (cosines,))[0]
    compare(
        product,
        F.jvp(F.grad(lambda p: theirs(p, x)), (expected,), (expected_cosines,))[1],
    )
    close(tl.vmap(ours, (None, 0))(given, x), F.vmap(theirs, (None, 0))(expected, x))
    per_sample = tl.vmap(tl.grad(ours), (None, 0))(given, x)
    compare(per_sample, F.vmap(F.grad(theirs), (None, 0))(expected, x))
    close(tl.grad(ours, 1)(given, x), F.grad(theirs, 1)(expected, x))


@case
def sharded_parameters_by_a_module_that_is_not():
    """As with fully_shard: gathered for the call, with gradients summed and sharded."""
    module = network()
    own = inputs() * (dist.get_rank() + 1)  # each rank has different data
    given = {name: placed(value, Shard(0)) for name, value in parameters(module).items()}

    def total(p):
        whole = {name: value.full_tensor(grad_placements=[Partial()]) for name, value in p.items()}
        return loss(module, tl.functional_call)(whole, own)

    def of_all(p):
        scales = range(1, dist.get_world_size() + 1)
        return sum(loss(module, F.functional_call)(p, inputs() * scale) for scale in scales)

    with counting() as sent:
        found = tl.grad(total)(given)
    expected = F.grad(of_all)(parameters(module))
    for name, value in expected.items():
        same(found[name], value, Shard(0))
    assert sent.names.count("reduce_scatter_tensor") == len(given)


@case
def a_module_of_fully_shard_as_a_closure():
    module = fully_shard(network(), mesh=mesh())
    gradient = tl.grad(lambda x: (module(x) ** 2).sum())(inputs())
    close(gradient, F.grad(lambda x: (network()(x) ** 2).sum())(inputs()))


@case
def a_parallel_module_sends_what_it_does_outside():
    module, x = parallel(), inputs()
    given = parameters(module)
    with counting() as outside, torch.no_grad():
        module(x)
    with counting() as inside:
        tl.vjp(lambda p: tl.functional_call(module, p, (x,)), given)
    assert inside.names == outside.names


test_over_ranks = over_ranks(__name__)
