"""Runs the programs of docs/distributed.md that need several ranks."""

import re

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torchlayers
from tests.distributed.processes import ROOT, case, over_ranks
from tests.distributed.test_vmap import close, mesh, numbers, rank, ranks, same, whole
from torchlayers.distributed import psum, psum_invariant

F = torch.func


def run(words, **given):
    """Runs the block of the page that contains these words, and returns the names it defines."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    (block,) = [each for each in re.findall(r"```\w*\n(.*?)```", text, re.S) if words in each]
    names = {
        "torch": torch,
        "torchlayers": torchlayers,
        "psum": psum,
        "psum_invariant": psum_invariant,
        "init_device_mesh": init_device_mesh,
        "mesh": {"dp": mesh()},
        "world_size": ranks(),
        **given,
    }
    exec(block, names)
    return names


def squares(outputs, targets):
    return ((outputs - targets) ** 2).sum()


def own(x):
    return x.chunk(ranks())[rank()]


@case
def per_sample_gradients_of_a_batch_over_ranks():
    params, batch = numbers(3, seed=1), numbers(2 * ranks() + 1, 3)

    def loss(params, x):
        return (x @ params).sin()

    names = run("per_sample = ", loss=loss, params=params, batch=batch)
    expected = F.vmap(F.grad(loss), (None, 0))(params, batch)
    same(names["gradients"], expected, Shard(0))


@case
def tensor_parallelism_by_hand():
    both = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("dp", "tp"))
    half = both["tp"].get_local_rank()
    first, second = numbers(3, 4, seed=4), numbers(4, 2, seed=5)
    weights = first.chunk(2, 1)[half], second.chunk(2, 0)[half]
    batch = numbers(2 * ranks(), 3)
    names = run("def layer(weights, x)", mesh=both, weights=weights, batch=batch)
    mapped = torchlayers.vmap(names["layer"], (None, 0), mesh=both["dp"])
    same(mapped(weights, batch), (batch @ first).relu() @ second, Shard(0))


@case
def products_with_gauss_newton_and_fisher_matrices():
    params, v = numbers(3, 2, seed=1), numbers(3, 2, seed=2)
    inputs, targets = numbers(2 * ranks(), 3), numbers(2 * ranks(), 2, seed=3)

    def model(params, inputs):
        return (inputs @ params).tanh()

    names = run("def gauss_newton_product")
    found = names["gauss_newton_product"](model, squares, params, v, own(inputs), own(targets))
    jacobian = F.jacrev(model)(params, inputs).flatten(0, 1).flatten(1)
    close(found, (2 * jacobian.T @ (jacobian @ v.flatten())).view(3, 2))

    def log_likelihood(params, x):
        return (x @ params).sin().sum()

    found = names["fisher_product"](log_likelihood, params[:, 0], v[:, 0], own(inputs))
    gradients = F.vmap(F.grad(log_likelihood), (None, 0))(params[:, 0], inputs)
    close(found, gradients.T @ (gradients @ v[:, 0]))


@case
def a_parallel_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2 * ranks()), nn.Tanh(), nn.Linear(2 * ranks(), 1))
    expected = F.vmap(
        F.grad(lambda p, x: (F.functional_call(module, p, (x,)) ** 2).sum()), (None, 0)
    )({name: value.detach() for name, value in module.named_parameters()}, numbers(4, 3))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = parallelize_module(module, mesh(), plan)
    params = {name: value.detach() for name, value in parallel.named_parameters()}
    names = run(
        "parallel_module, params", parallel_module=parallel, params=params, batch=numbers(4, 3)
    )
    per_sample = torchlayers.vmap(torchlayers.grad(names["loss"]), (None, 0))
    for name, value in per_sample(params, numbers(4, 3)).items():
        same(value, expected[name])


@case
def a_module_of_fully_shard():
    torch.manual_seed(0)
    module = nn.Linear(3, 5)
    plain = {name: value.detach().clone() for name, value in module.named_parameters()}
    batches = [numbers(4, 3, seed=i) for i in range(ranks())]

    def of_all(p):
        return sum((F.functional_call(nn.Linear(3, 5), p, (x,)) ** 2).sum() for x in batches)

    sharded = fully_shard(module, mesh=mesh())
    params = {name: value.detach() for name, value in sharded.named_parameters()}
    names = run(
        "functional_call(sharded_module",
        sharded_module=sharded,
        params=params,
        own_batch=batches[rank()],
        batch=batches[0],
    )
    found = torchlayers.grad(names["loss"])(params, batches[rank()])
    for name, value in F.grad(of_all)(plain).items():
        same(found[name], value, Shard(0))


@case
def the_gradient_of_a_replicated_module():
    params, data = numbers(3, seed=1), numbers(2 * ranks(), 3)

    def loss(params, batch):
        return (batch @ params).sin().sum()

    names = run(
        "torchlayers.grad(loss)(params, batch)\n", loss=loss, params=params, batch=own(data)
    )
    close(whole(names["grads"]), F.grad(loss)(params, data))


test_over_ranks = over_ranks(__name__)
