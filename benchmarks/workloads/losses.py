"""Derivatives of a classifier's loss: per-sample gradients, and Hessian-vector products."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import batched_operators, specialists, torch_operators
from benchmarks.workloads.layered import Layered
from benchmarks.workloads.networks import (
    CLASSES,
    WORDS,
    cnn,
    cnn_parameters,
    inputs,
    integers,
    transformer,
    transformer_parameters,
)
from benchmarks.workloads.workload import Network, Parameters, Program, Workload


def cnn_gradients(images: int) -> Workload:
    params, batch = cnn_parameters(), (inputs(images, 1, 8, 8), integers(CLASSES, images))
    return Workload(
        "per-sample gradients, digits CNN",
        f"{images} images",
        _gradients(cnn),
        _gradients_by_hand(cnn),
        (params, *batch),
        specialists.gradients(lambda: Layered(cnn, params, batch[0]), *batch),
    )


def transformer_gradients(width: int, blocks: int, length: int, batch: int) -> Workload:
    params = transformer_parameters(width, blocks)
    data = integers(WORDS, batch, length), integers(CLASSES, batch)
    return Workload(
        "per-sample gradients, transformer",
        f"{width} wide, {batch} x {length} words",
        _gradients(transformer),
        _gradients_by_hand(transformer),
        (params, *data),
        specialists.gradients(lambda: Layered(transformer, params, data[0]), *data),
    )


def hessian_vector_product(images: int) -> Workload:
    params, batch = cnn_parameters(), (inputs(images, 1, 8, 8), integers(CLASSES, images))
    vector = [param.cos() for param in params]
    return Workload(
        "Hessian-vector product, digits CNN",
        f"{images} images",
        _product,
        _product_by_hand,
        (params, vector, *batch),
        specialists.hessian(lambda: Layered(cnn, params, batch[0]), vector, *batch),
    )


def _gradients(network: Network) -> Program:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def loss(params: Parameters, x: Tensor, label: Tensor) -> Tensor:
            return ops.cross_entropy(network(ops, params, x[None]), label[None])

        return transforms.vmap(transforms.grad(loss), (None, 0, 0))

    return program


def _gradients_by_hand(network: Network) -> Callable[..., Any]:
    ops = batched_operators

    def run(params: Parameters, x: Tensor, labels: Tensor) -> Any:
        each = [param.expand(len(x), *param.shape).requires_grad_() for param in params]
        total = ops.cross_entropy(network(ops, each, x[:, None]), labels[:, None])
        return torch.autograd.grad(total, each)

    return run


def _product(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
    def run(params: Parameters, vector: Parameters, images: Tensor, labels: Tensor) -> Any:
        gradient = transforms.grad(lambda params: _cnn_loss(ops, params, images, labels))
        return transforms.jvp(gradient, (params,), (vector,))[1]

    return run


def _product_by_hand(params: Parameters, vector: Parameters, *batch: Tensor) -> Any:
    leaves = [param.detach().requires_grad_() for param in params]
    loss = _cnn_loss(torch_operators, leaves, *batch)
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    return torch.autograd.grad(gradients, leaves, vector)


def _cnn_loss(ops: ModuleType, params: Parameters, images: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(cnn(ops, params, images), labels)
