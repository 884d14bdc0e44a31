"""Derivatives of MLPs: an ensemble, Jacobians, a Hessian, the neural tangent kernel."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from benchmarks.workloads import batched_operators, torch_operators
from benchmarks.workloads.networks import inputs, mlp, mlp_parameters
from benchmarks.workloads.workload import Parameters, Workload

MEMBERS = 64


def ensemble(width: int, samples: int) -> Workload:
    return Workload(
        f"ensemble of {MEMBERS} MLPs",
        f"{width} wide, {samples} samples",
        lambda transforms, ops: transforms.vmap(lambda params, x: mlp(ops, params, x), (0, None)),
        lambda params, x: mlp(batched_operators, params, x.expand(MEMBERS, *x.shape)),
        (mlp_parameters([width, width, width, 1], (MEMBERS,)), inputs(samples, width)),
    )


def jacobian(widths: list[int]) -> Workload:
    """The Jacobian by inputs that are fewer than the outputs: forward mode."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        return transforms.jacfwd(lambda params, x: mlp(ops, params, x), 1)

    def by_hand(params: Parameters, x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            rows = forward_ad.make_dual(x.repeat(len(x), 1), torch.eye(len(x), device=x.device))
            return forward_ad.unpack_dual(mlp(torch_operators, params, rows)).tangent.T

    return Workload(
        "Jacobian of an MLP",
        f"{widths[-1]} x {widths[0]}",
        program,
        by_hand,
        (mlp_parameters(widths), inputs(widths[0])),
    )


def hessian(width: int) -> Workload:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        return transforms.hessian(lambda params, x: mlp(ops, params, x)[0], 1)

    def by_hand(params: Parameters, x: Tensor) -> Tensor:
        rows = x.expand(width, width).requires_grad_()
        total = mlp(torch_operators, params, rows).sum()
        (gradients,) = torch.autograd.grad(total, rows, create_graph=True)
        return torch.autograd.grad(gradients, rows, torch.eye(width, device=x.device))[0]

    return Workload(
        "Hessian of an MLP",
        f"{width} x {width}",
        program,
        by_hand,
        (mlp_parameters([width, width, width, 1]), inputs(width)),
    )


def neural_tangent_kernel(width: int, samples: int) -> Workload:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def output(params: Parameters, x: Tensor) -> Tensor:
            return mlp(ops, params, x)[0]

        gradients = transforms.vmap(transforms.grad(output), (None, 0))
        return lambda params, a, b: _contracted(gradients(params, a), gradients(params, b))

    def by_hand(params: Parameters, a: Tensor, b: Tensor) -> Tensor:
        def gradients(x: Tensor) -> Any:
            each = [param.expand(len(x), *param.shape).requires_grad_() for param in params]
            return torch.autograd.grad(mlp(batched_operators, each, x[:, None]).sum(), each)

        return _contracted(gradients(a), gradients(b))

    both = inputs(2, samples, width)
    return Workload(
        "neural tangent kernel of an MLP",
        f"{width} wide, {samples} x {samples}",
        program,
        by_hand,
        (mlp_parameters([width, width, width, 1]), both[0], both[1]),
    )


def _contracted(first: list[Any], second: list[Any]) -> Any:
    """The inner products of the gradients at each pair of samples."""
    return sum(
        a.reshape(len(a), -1) @ b.reshape(len(b), -1).T for a, b in zip(first, second, strict=True)
    )
