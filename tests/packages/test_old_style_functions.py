"""The autograd.Functions of entmax and pytorch-revgrad: torch.func rejects them, since their
forward takes ctx.

Per-sample gradients are compared with autograd's, one sample at a time.
"""

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.packages import package

entmax = package("entmax")
revgrad = package("pytorch_revgrad")

X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).sin()
LABELS = torch.tensor([0, 3, 1])
WEIGHT = torch.linspace(0.5, 2, 4, dtype=torch.float64)

CLASSES = [
    function
    for name in ("entmax.activations", "entmax.losses", "entmax.root_finding")
    for function in vars(package(name)).values()
    if isinstance(function, type) and issubclass(function, torch.autograd.Function)
] + [package("pytorch_revgrad.functional").RevGrad]


@pytest.fixture(autouse=True)
def batchable(monkeypatch):
    for function in CLASSES:
        monkeypatch.setattr(function, "generate_vmap_rule", True)


FUNCTIONS = {
    "sparsemax": lambda x: entmax.sparsemax(x, dim=-1) @ WEIGHT,
    "entmax15": lambda x: entmax.entmax15(x, dim=-1) @ WEIGHT,
    "entmax_bisect": lambda x: entmax.entmax_bisect(x, alpha=1.3, dim=-1) @ WEIGHT,
    "sparsemax_bisect": lambda x: entmax.sparsemax_bisect(x, dim=-1) @ WEIGHT,
    "normmax_bisect": lambda x: entmax.normmax_bisect(x, alpha=3, dim=-1) @ WEIGHT,
    "a reversed gradient": lambda x: revgrad.RevGrad(2.0)(x.sin()) @ WEIGHT,
}


def alone(func, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(func(x), x)[0]


@pytest.mark.parametrize("func", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_of_samples(func):
    one_by_one = torch.stack([alone(func, x) for x in X])
    torch.testing.assert_close(tl.vmap(tl.grad(func))(X), one_by_one)
    values = tl.vmap(func)(X)
    torch.testing.assert_close(values, torch.stack([func(x) for x in X]))


@pytest.mark.parametrize("func", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_gradient_by_jacrev_and_vjp(func):
    gradient = alone(func, X[0])
    torch.testing.assert_close(tl.jacrev(func)(X[0]), gradient)
    torch.testing.assert_close(tl.vjp(func, X[0])[1](torch.ones_like(func(X[0])))[0], gradient)


def test_a_loss_of_entmax_by_sample():
    loss = entmax.Entmax15Loss(reduction="sum")

    def by_sample(x, label):
        return loss(x[None], label[None])

    one_by_one = torch.stack(
        [alone(lambda x, y=y: by_sample(x, y), x) for x, y in zip(X, LABELS, strict=True)]
    )
    torch.testing.assert_close(tl.vmap(tl.grad(by_sample))(X, LABELS), one_by_one)


def test_a_network_that_reverses_gradients():
    net = nn.Sequential(nn.Linear(4, 3), revgrad.RevGrad(alpha=0.5), nn.Linear(3, 1)).double()
    params = {name: param.detach() for name, param in net.named_parameters()}

    def loss(params, x):
        return tl.functional_call(net, params, (x,)).sum()

    together = tl.vmap(tl.grad(loss), (None, 0))(params, X)
    for i, x in enumerate(X):
        net.zero_grad()
        net(x).sum().backward()
        for name, param in net.named_parameters():
            torch.testing.assert_close(together[name][i], param.grad)
