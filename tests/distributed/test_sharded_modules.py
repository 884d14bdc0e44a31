"""functional_call of fully_shard modules: given parameters are gathered where the module runs."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import close, mesh, numbers, placed, ranks
from torchlayers.distributed import counting
from torchlayers.errors import TransformError

F = torch.func


def network():
    """A network whose sizes are not divisible by the number of ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


plain = functools.cache(network)


def whole_module(**options):
    return fully_shard(network(), mesh=mesh(), **options)


def layer_by_layer(**options):
    module = network()
    for i in (0, 2):
        fully_shard(module[i], mesh=mesh(), **options)
    return fully_shard(module, mesh=mesh(), **options)


def layers_alone():
    """Shards the layers, but not the module itself."""
    module = network()
    for i in (0, 2, 4):
        fully_shard(module[i], mesh=mesh())
    return module


def layers_together():
    module = network()
    fully_shard([module[0], module[2]], mesh=mesh())
    return fully_shard(module, mesh=mesh())


SHARDED = (whole_module, layer_by_layer, layers_alone, layers_together)


def parameters(module):
    return {name: value.detach() for name, value in module.named_parameters()}


def data():
    return numbers(4, 3)


def own():
    """Returns data that differ on each rank."""
    return data() * (dist.get_rank() + 1)


def loss(module, call):
    return lambda p, x: (call(module, p, (x,)) ** 2).sum()


def of_all(p):
    """Computes the sum of all ranks' losses on one rank."""
    return sum(loss(plain(), F.functional_call)(p, data() * (i + 1)) for i in range(ranks()))


def compare(found, expected, placement=None):
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].full_tensor() if isinstance(found[name], DTensor) else found[name],
            value,
            rtol=1e-4,
            atol=1e-5,
        )
        if placement is not None and isinstance(found[name], DTensor):
            assert found[name].placements == (placement,)


@case
def derivatives_by_what_is_given_are_summed_and_sharded():
    expected = parameters(plain())
    gradient = F.grad(of_all)(expected)
    directions = {name: value.cos() for name, value in expected.items()}
    product = F.jvp(F.grad(of_all), (expected,), (directions,))[1]
    own_loss = loss(plain(), F.functional_call)
    for make in SHARDED:
        module = make()
        given = parameters(module)
        ours = loss(module, tl.functional_call)
        compare(tl.grad(ours)(given, own()), gradient, Shard(0))
        along = {name: value.cos() for name, value in given.items()}
        compare(tl.hvp(lambda p, f=ours: f(p, own()), (given,), (along,))[0], product, Shard(0))
        tangent = tl.jvp(lambda p, f=ours: f(p, own()), (given,), (along,))[1]
        close(tangent, F.jvp(lambda p: own_loss(p, own()), (expected,), (directions,))[1])
        for value in given.values():
            value.requires_grad_()
        found = torch.autograd.grad(ours(given, own()), [*given.values()])
        compare(dict(zip(given, found, strict=True)), gradient, Shard(0))


@case
def samples_and_ensembles():
    expected = parameters(plain())
    for make in SHARDED:
        module = make()
        given = parameters(module)
        ours, theirs = loss(module, tl.functional_call), loss(plain(), F.functional_call)
        close(tl.vmap(ours, (None, 0))(given, own()), F.vmap(theirs, (None, 0))(expected, own()))
        per_sample = tl.vmap(tl.grad(ours), (None, 0))(given, data())
        wanted = F.vmap(F.grad(theirs), (None, 0))(expected, data())
        compare(per_sample, {name: value * ranks() for name, value in wanted.items()}, Shard(1))
        models = {
            name: placed(torch.stack([value, 2 * value]), Shard(1))
            for name, value in expected.items()
        }
        several = {name: torch.stack([value, 2 * value]) for name, value in expected.items()}
        close(tl.vmap(ours, (0, None))(models, own()), F.vmap(theirs, (0, None))(several, own()))
        compare(tl.vmap(tl.grad(ours), (0, None))(models, own()), F.vmap(F.grad(of_all))(several))


@case
def whole_parameters_have_each_ranks_gradient():
    given = parameters(plain())
    for make in SHARDED:
        found = tl.grad(loss(make(), tl.functional_call))(given, own())
        compare(found, F.grad(loss(plain(), F.functional_call))(given, own()))


@case
def what_is_not_given_is_the_modules_own():
    whole = parameters(plain())
    for make in SHARDED:
        module = make()
        one = {"2.weight": parameters(module)["2.weight"]}
        gradient = F.grad(lambda p: of_all({**whole, **p}))({"2.weight": whole["2.weight"]})
        compare(tl.grad(loss(module, tl.functional_call))(one, own()), gradient, Shard(0))
        # Plain autograd differentiates by parameters that are not given.
        loss(module, tl.functional_call)(one, own()).backward()
        everything = F.grad(of_all)(whole)
        for name, value in module.named_parameters():
            if name in one:
                assert value.grad is None
            else:
                compare({name: value.grad}, {name: everything[name]})


@case
def the_module_is_as_it_was():
    for make in SHARDED[:-1]:
        module, other = make(), make()
        given = parameters(module)
        before = dict(module.named_parameters())

        def fails(self, x):
            raise ZeroDivisionError

        tl.grad(loss(module, tl.functional_call))(given, own())
        broken = nn.Sequential(module, nn.Identity())
        broken[1].forward = fails.__get__(broken[1])
        with pytest.raises(ZeroDivisionError):
            tl.functional_call(broken, {f"0.{name}": value for name, value in given.items()}, own())
        module[1].register_forward_hook(lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tl.grad(loss(module, tl.functional_call))(given, own())
        module[1]._forward_hooks.clear()
        assert all(value is before[name] for name, value in module.named_parameters())
        for each in (module, other):  # and trains like a module without functional_call
            (each(own()) ** 2).sum().backward()
        for (name, value), expected in zip(
            module.named_parameters(), other.parameters(), strict=True
        ):
            compare({name: value.grad}, {name: expected.grad.full_tensor()})
        # A module whose parameters torch has left gathered after its forward:
        compare(
            tl.grad(loss(module, tl.functional_call))(given, own()),
            F.grad(of_all)(parameters(plain())),
        )


@case
def a_unit_is_gathered_and_reduced_in_one_collective():
    for make, units in ((whole_module, 1), (layer_by_layer, 3)):
        module = make()
        given = parameters(module)
        rows = sum(-(-v.shape[0] // ranks()) * v[:1].numel() for v in given.values())
        with counting() as sent:
            tl.grad(loss(module, tl.functional_call))(given, own())
        assert sent.names == ["all_gather"] * units + ["psum_scatter"] * units
        assert sent.bytes == 8 * rows * (1 + ranks())
        with counting() as sent:
            tl.vmap(tl.grad(loss(module, tl.functional_call)), (None, 0))(given, own())
        assert sent.names == ["all_gather"] * units + ["psum_scatter"] * units


@case
def parameters_are_cast_as_the_policy_says():
    for reduce_dtype in (None, torch.float32):
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype, output_dtype=torch.float16
        )
        module = whole_module(mp_policy=policy)
        given = parameters(module)
        found = tl.functional_call(module, given, (own(),))
        assert found.dtype == torch.float16
        close(found, module(own()).detach())
        gradient = tl.grad(loss(module, tl.functional_call))(given, own())
        for name, value in F.grad(of_all)(parameters(plain())).items():
            assert gradient[name].dtype == torch.float64
            scale = value.abs().max()
            torch.testing.assert_close(
                gradient[name].full_tensor() / scale, value / scale, rtol=0.1, atol=0.1
            )


@case
def parts_of_any_dimension():
    torch.manual_seed(0)
    whole = nn.Linear(4, 4)
    torch.manual_seed(0)
    module = fully_shard(
        nn.Linear(4, 4), mesh=mesh(), shard_placement_fn=lambda p: Shard(p.dim() - 1)
    )
    x = numbers(5, 4)
    given = parameters(module)
    found = tl.grad(loss(module, tl.functional_call))(given, x)
    expected = F.grad(loss(whole, F.functional_call))(parameters(whole), x)
    compare(found, {name: value * ranks() for name, value in expected.items()})
    assert found["weight"].placements == (Shard(1),)
    # The given parameters may have any placement.
    given = {name: placed(value, Shard(0)) for name, value in parameters(whole).items()}
    found = tl.grad(loss(module, tl.functional_call))(given, x)
    compare(found, {name: value * ranks() for name, value in expected.items()}, Shard(0))


@case
def replicas_of_shards():
    both = init_device_mesh("cpu", (2, ranks() // 2), mesh_dim_names=("replica", "shard"))
    module = fully_shard(network(), mesh=both)
    given = parameters(module)
    with counting() as sent:
        found = tl.grad(loss(module, tl.functional_call))(given, own())
    compare(found, F.grad(of_all)(parameters(plain())))
    assert all(found[name].placements == given[name].placements for name in given)
    assert sent.names == ["all_gather", "psum_scatter", "psum_invariant_each"]


@case
def tensor_parallelism_inside():
    both = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    module = fully_shard(parallelize_module(module, both["tp"], plan), mesh=both["dp"])
    given = parameters(module)
    x = data() * (both["dp"].get_local_rank() + 1)

    def of_all(p):
        ours = loss(whole, F.functional_call)
        return sum(ours(p, data() * (i + 1)) for i in range(ranks() // 2))

    expected = F.grad(of_all)(parameters(whole))
    close(
        tl.functional_call(module, given, (x,)), F.functional_call(whole, parameters(whole), (x,))
    )
    found = tl.grad(loss(module, tl.functional_call))(given, x)
    compare(found, expected)
    assert all(found[name].placements == given[name].placements for name in given)


@case
def checkpointed_layers_are_gathered_again():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers_alone()

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    module = Checkpointed()
    given = parameters(module)
    expected = F.grad(of_all)(parameters(plain()))
    found = tl.grad(loss(module, tl.functional_call))(given, own())
    compare({name.removeprefix("layers."): value for name, value in found.items()}, expected)


@case
def a_dtensor_of_another_mesh_is_refused():
    other = init_device_mesh("cpu", (1, ranks()), mesh_dim_names=("a", "b"))
    module = whole_module()
    given = {name: DTensor.from_local(value, other) for name, value in parameters(plain()).items()}
    with pytest.raises(TransformError, match="Pass it on that mesh"):
        tl.functional_call(module, given, (own(),))


test_over_ranks = over_ranks(__name__)
