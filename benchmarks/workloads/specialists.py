"""Packages for one kind of derivative: Opacus, BackPACK, curvlinops."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from benchmarks.timing import Work
from benchmarks.workloads.workload import Parameters

Model = Callable[[], nn.Module]
Specialists = dict[str, Callable[[], Work]]


def gradients(
    model: Model, x: Tensor, labels: Tensor, then: Callable[[list[Tensor]], Any] = list
) -> Specialists:
    """What ``then`` makes of the gradients of each sample's loss, its labels' mean."""

    def maker(of: Callable[[nn.Module, Tensor, Tensor], Work]) -> Callable[[], Work]:
        def make() -> Work:
            each = of(model(), x, labels)
            return lambda: then(each())

        return make

    return {"Opacus": maker(_opacus), "BackPACK": maker(_backpack)}


def hessian(model: Model, vector: Parameters, x: Tensor, labels: Tensor) -> Specialists:
    return _curvlinops("HessianLinearOperator", model, vector, x, labels)


def gauss_newton(model: Model, vector: Parameters, x: Tensor, labels: Tensor) -> Specialists:
    return _curvlinops("GGNLinearOperator", model, vector, x, labels)


def _opacus(model: nn.Module, x: Tensor, labels: Tensor) -> Work:
    from opacus import GradSampleModule

    sampled, loss = GradSampleModule(model, loss_reduction="sum"), _summed_loss()
    share = len(x) / len(labels)

    def work() -> list[Any]:
        sampled.zero_grad(set_to_none=True)
        (loss(sampled(x), labels) * share).backward()
        return [parameter.grad_sample for parameter in sampled.parameters()]

    return work


def _backpack(model: nn.Module, x: Tensor, labels: Tensor) -> Work:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    extended, loss = extend(model), extend(_summed_loss())
    share = len(x) / len(labels)

    def work() -> list[Any]:
        extended.zero_grad(set_to_none=True)
        with backpack(BatchGrad()):
            (loss(extended(x), labels) * share).backward()
        try:
            return [parameter.grad_batch for parameter in extended.parameters()]
        except AttributeError:
            raise NotImplementedError(f"It has no rule for {_without(extended)}.") from None

    return work


def _without(model: nn.Module) -> str:
    """The kinds of layers whose parameters BackPACK gave no gradients."""
    kinds = {
        type(layer).__name__
        for layer in model.modules()
        if not all(hasattr(own, "grad_batch") for own in layer.parameters(recurse=False))
    }
    return ", ".join(sorted(kinds))


def _curvlinops(
    kind: str, model: Model, vector: Parameters, x: Tensor, labels: Tensor
) -> Specialists:
    def make() -> Work:
        operator, network = getattr(importlib.import_module("curvlinops"), kind), model()
        data, params = [(x, labels)], list(network.parameters())
        matrix = operator(network, nn.CrossEntropyLoss(), params, data, check_deterministic=False)
        return functools.partial(matrix.__matmul__, vector)

    return {"curvlinops": make}


def _summed_loss() -> nn.Module:
    return nn.CrossEntropyLoss(reduction="sum")
