"""Packages for one kind of derivative: Opacus, BackPACK, curvlinops."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Work
from benchmarks.workloads import torch_operators
from benchmarks.workloads.networks import transformer_of
from benchmarks.workloads.workload import Parameters

Specialists = dict[str, Callable[[], Work]]


def gradients(model: Callable[[], nn.Module], x: Tensor, labels: Tensor) -> Specialists:
    return {
        "Opacus": lambda: _opacus(model(), x, labels),
        "BackPACK": lambda: _backpack(model(), x, labels),
    }


def product(
    model: Callable[[], nn.Module], vector: Parameters, x: Tensor, labels: Tensor
) -> Specialists:
    return {"curvlinops": lambda: _curvlinops(model(), vector, x, labels)}


def cnn(params: Parameters) -> nn.Module:
    """networks.cnn as a module."""
    layers = [
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    ]  # fmt: skip
    return _with(params, nn.Sequential(*layers))


class Transformer(nn.Module):
    """networks.transformer as a module."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        table, *weights = params
        self.embed = nn.Embedding(*table.shape)
        self.layers = nn.ModuleList(nn.Linear(*weight.T.shape, bias=False) for weight in weights)
        _with(params, self)

    def forward(self, words: Tensor) -> Tensor:
        return transformer_of(torch_operators, self.embed, list(self.layers), words)


def _with(params: Parameters, model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), params, strict=True):
            parameter.copy_(value)
    return model


def _opacus(model: nn.Module, x: Tensor, labels: Tensor) -> Work:
    from opacus import GradSampleModule

    sampled, loss = GradSampleModule(model, loss_reduction="sum"), _summed_loss()

    def work() -> list[Any]:
        sampled.zero_grad(set_to_none=True)
        loss(sampled(x), labels).backward()
        return [parameter.grad_sample for parameter in sampled.parameters()]

    return work


def _backpack(model: nn.Module, x: Tensor, labels: Tensor) -> Work:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    extended, loss = extend(model), extend(_summed_loss())

    def work() -> list[Any]:
        extended.zero_grad(set_to_none=True)
        with backpack(BatchGrad()):
            loss(extended(x), labels).backward()
        return [parameter.grad_batch for parameter in extended.parameters()]

    return work


def _curvlinops(model: nn.Module, vector: Parameters, x: Tensor, labels: Tensor) -> Work:
    from curvlinops import HessianLinearOperator

    loss, parameters = nn.CrossEntropyLoss(), list(model.parameters())
    hessian = HessianLinearOperator(
        model, loss, parameters, [(x, labels)], check_deterministic=False
    )
    return lambda: hessian @ vector


def _summed_loss() -> nn.Module:
    return nn.CrossEntropyLoss(reduction="sum")
