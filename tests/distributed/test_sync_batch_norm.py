"""SyncBatchNorm inside transforms, against BatchNorm over all ranks' rows on one process."""

import functools
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm

import torchlayers as tl
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import close, numbers, rank, ranks
from torchlayers.distributed import counting

F = torch.func
SIZES = (1, 3)
SHAPES = ((), (2, 3))


def rows(size, shape=()):
    """Returns all ranks' rows; the first has one more than the others, the last none."""
    sizes = [size + 1, *[size] * (ranks() - 2), 0]
    return [numbers(n, 3, *shape, seed=i) for i, n in enumerate(sizes)]


def synced(x, weight, bias, mean=None, var=None):
    group = dist.group.WORLD
    return SyncBatchNorm.apply(x, weight, bias, mean, var, 1e-5, 0.1, group, ranks())


def of_one(x, weight, bias, mean=None, var=None):
    return torch.nn.functional.batch_norm(x, mean, var, weight, bias, training=True)


def weights():
    return torch.tensor([1.0, 2.0, -0.5]), torch.tensor([0.1, 0.0, 3.0])


def loss(f):
    return lambda x, weight, bias: weighted(f(x, weight, bias))


def own(x, parts):
    return x.split([len(each) for each in parts])[rank()]


def weighted(y):
    return (y.sin() * torch.arange(1.0, y.shape[1:].numel() + 1).view(1, *y.shape[1:])).sum()


@case
def derivatives_are_those_of_all_ranks_rows():
    for size in SIZES:
        for shape in SHAPES:
            parts = rows(size, shape)
            x, whole = parts[rank()], torch.cat(parts)
            close(tl.vjp(synced, x, *weights())[0], own(of_one(whole, *weights()), parts))
            found = tl.grad(loss(synced))(x, *weights())
            close(found, own(F.grad(loss(of_one))(whole, *weights()), parts))
            tangent = tl.jvp(lambda x: synced(x, *weights()), (x,), (x.cos(),))[1]
            expected = F.jvp(lambda x: of_one(x, *weights()), (whole,), (whole.cos(),))[1]
            close(tangent, own(expected, parts))
            found = tl.hvp(lambda x: loss(synced)(x, *weights()), (x,), (x.cos(),))[0]
            of_all = F.grad(lambda x: loss(of_one)(x, *weights()))
            close(found, own(F.jvp(of_all, (whole,), (whole.cos(),))[1], parts))
            batch = torch.stack([x, x.cos()])
            both = torch.stack([whole, whole.cos()])
            found = tl.vmap(tl.grad(loss(synced)), (0, None, None))(batch, *weights())
            expected = torch.stack([F.grad(loss(of_one))(each, *weights()) for each in both])
            close(found, torch.stack([own(each, parts) for each in expected]))


@case
def gradients_by_weight_and_bias_are_each_ranks_own():
    parts = rows(3)
    x, whole = parts[rank()], torch.cat(parts)
    found = tl.grad(lambda w, b: weighted(synced(x, w, b)), (0, 1))(*weights())
    expected = F.grad(lambda w, b: weighted(own(of_one(whole, w, b), parts)), (0, 1))(*weights())
    for each, other in zip(found, expected, strict=True):
        close(each, other)


@case
def running_statistics_are_those_of_all_ranks_rows():
    parts = rows(4, (2,))

    def run(f, x):
        mean, var = torch.ones(3), torch.ones(3)
        f(x, *weights(), mean, var)
        return mean, var

    expected = run(of_one, torch.cat(parts))
    found = tl.vjp(lambda x: run(synced, x), parts[rank()])[0]
    for each, other in zip(found, expected, strict=True):
        close(each, other)


@case
def one_collective_forward_and_one_back():
    x = rows(3)[rank()]
    with counting() as sent:
        tl.grad(lambda x: weighted(synced(x, *weights())))(x)
    assert sent.names == ["all_gather", "psum_scatter"]
    assert sent.bytes == 8 * (2 * 3 + 1) * (1 + ranks())
    with counting() as sent:
        tl.jvp(lambda x: synced(x, *weights()), (x,), (x,))
    assert sent.names == ["all_gather"]


@case
def a_converted_network_under_a_transform():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh())
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh())
    )
    synchronised.load_state_dict(plain.state_dict())
    whole = numbers(2 * ranks(), 2, 3, 3)
    x = whole.chunk(ranks())[rank()]

    def of_module(module, params, x):
        state = {name: value.clone() for name, value in module.named_buffers()}
        return weighted(tl.functional_call(module, ({**params}, state), (x,)))

    def gradient(module, x):
        params = {name: value.detach() for name, value in module.named_parameters()}
        return tl.grad(functools.partial(of_module, module), (0, 1))(params, x)

    with pytest.raises(ValueError, match="to be on GPU"):  # torch's message
        gradient(synchronised, x)
    with mock.patch.object(torch._C, "_get_privateuse1_backend_name", lambda: "cpu"):
        of_params, of_inputs = gradient(synchronised, x)
    expected, of_all_inputs = gradient(plain, whole)
    close(of_inputs, of_all_inputs.chunk(ranks())[rank()])
    for name, value in of_params.items():
        total = value.clone()
        dist.all_reduce(total)
        close(total, expected[name])


test_over_ranks = over_ranks(__name__)
