"""Functions from a vector to a number, each with a feature that recomputation may get wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchlayers as tl
from tests.remat.nests import W


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t


net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
PARAMETERS = {
    name: torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape)
    for name, p in net.named_parameters()
}


def layers(x):
    return torch.tanh(W @ x).exp().sin().sum()


def written(x):
    y = x.exp()
    y = y.clone()
    y.mul_(x)
    y[0] = y[0] * 2
    return (y * y).sum() * x.prod()


def of_torchs(x):
    """Has operators that are differentiated by torch's own autograd nodes."""
    y = torch.linalg.vector_norm(x.reshape(3, 1), dim=1)
    return torch.as_strided(torch.cat([y, x * 2]), (2, 2), (2, 1)).exp().sum()


def of_lists(x):
    return torch.stack([x.sin(), x * x, W @ x]).prod() + torch.cat([x, x.cos()]).prod()


def custom(x):
    return (Cube.apply(x.sin()) * Cube.apply(x)).sum()


def with_transform(x):
    inner = tl.grad(lambda a: (a.sin() * a * x).sum())(x)
    return inner.sin().sum() + tl.vmap(lambda a: a.exp() * x.sum())(x).sum()


def with_jacobian(x):
    return tl.jacrev(lambda a: torch.stack([layers(a), a.prod()]))(x).sin().sum()


def without_gradient(x):
    with torch.no_grad():
        scale = x.exp().sum()
    return (x.sin() * scale).sum()


def called_with_parameters(x):
    given = {name: p * x.mean() for name, p in PARAMETERS.items()}
    return tl.functional_call(net, given, (x,)).sum()


def mixed_precision(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x.float(), W.float()).double().tanh().sum()


FUNCTIONS = [
    layers,
    written,
    of_torchs,
    of_lists,
    custom,
    with_transform,
    with_jacobian,
    without_gradient,
    called_with_parameters,
    mixed_precision,
]
functions = pytest.mark.parametrize("function", FUNCTIONS)
