"""Derivatives of operators against those of the same functions composed of simpler operators.

A function for each kind of rule, which every run tries: the sweeps over op_db may try a part.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torchlayers as tl

X = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
WEIGHT, BIAS, FACTORS = X.cos(), X.sin(), X.exp()


def standardized(x):
    centred = x - x.mean()
    return centred / ((centred**2).mean() + 1e-5).sqrt()


# An operator, and what it computes.
FUNCTIONS = {
    "atanh": (torch.atanh, lambda x: 0.5 * torch.log((1 + x) / (1 - x))),
    "atan2": (lambda x: torch.atan2(x, 1 - x), lambda x: torch.atan(x / (1 - x))),
    "log_softmax": (lambda x: x.log_softmax(0), lambda x: x - x.exp().sum().log()),
    "cumprod with a zero": (
        lambda x: (x - X[2]).cumprod(0),
        lambda x: torch.stack([math.prod((x - X[2])[:i].unbind()) for i in range(1, 7)]),
    ),
    "layer norm": (
        lambda x: F.layer_norm(x, (6,), WEIGHT, BIAS),
        lambda x: standardized(x) * WEIGHT + BIAS,
    ),
    "variance": (
        lambda x: x.var(correction=2),
        lambda x: ((x - x.mean()) ** 2).sum() / 4,
    ),
    "mse_loss by both arguments": (
        lambda x: F.mse_loss(x.cos(), x.sin()),
        lambda x: ((x.cos() - x.sin()) ** 2).mean(),
    ),
}
TRANSFORMS = {
    "grad": tl.grad,
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "hessian": tl.hessian,
    "grad of grad": lambda f: tl.grad(lambda x: (tl.grad(f)(x) * x.sin()).sum()),
    "vmap of grad": lambda f: lambda x: tl.vmap(tl.grad(f))(torch.stack([x, x / 2])),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_the_composed_function(name, transform):
    one, other = (
        TRANSFORMS[transform](lambda x, f=f: (f(x) * FACTORS).sum())(X) for f in FUNCTIONS[name]
    )
    assert_close(one, other)
