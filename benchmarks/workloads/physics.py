"""A Lennard-Jones cluster, a physics-informed network's Laplacian, and MAML."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.physics import cluster, lennard_jones
from benchmarks.workloads import batched_operators, torch_operators
from benchmarks.workloads.networks import inputs, mlp, mlp_parameters
from benchmarks.workloads.workload import Parameters, Workload

INNER_STEPS, RATE = 3, 0.05


def forces(atoms: int) -> Workload:
    def by_hand(atoms: Tensor, *pairs: Tensor) -> Tensor:
        leaf = atoms.detach().requires_grad_()
        return torch.autograd.grad(lennard_jones(leaf, *pairs), leaf)[0]

    return Workload(
        "Lennard-Jones cluster, forces",
        f"{atoms} atoms",
        lambda transforms, ops: transforms.grad(lennard_jones),
        by_hand,
        cluster(atoms),
    )


def force_constants(atoms: int) -> Workload:
    def by_hand(atoms: Tensor, *pairs: Tensor) -> Tensor:
        coordinates = atoms.numel()
        rows = atoms.expand(coordinates, *atoms.shape).requires_grad_()
        energy = lennard_jones(rows, *pairs)
        (gradients,) = torch.autograd.grad(energy, rows, create_graph=True)
        directions = torch.eye(coordinates, device=atoms.device).view_as(rows)
        hessian = torch.autograd.grad(gradients, rows, directions)[0]
        return hessian.view(*atoms.shape, *atoms.shape)

    return Workload(
        "Lennard-Jones cluster, Hessian",
        f"{atoms} atoms",
        lambda transforms, ops: transforms.hessian(lennard_jones),
        by_hand,
        cluster(atoms),
    )


def laplacian(width: int, points: int) -> Workload:
    """The Laplacian of a network on the plane, at points."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def at_a_point(params: Parameters, point: Tensor) -> Tensor:
            slopes = transforms.grad(lambda point: mlp(ops, params, point)[0])
            axes = ops.axes_of(point)
            return sum(transforms.jvp(slopes, (point,), (axis,))[1] @ axis for axis in axes)

        return transforms.vmap(at_a_point, (None, 0))

    def by_hand(params: Parameters, points: Tensor) -> Tensor:
        x = points.detach().requires_grad_()
        outputs = mlp(torch_operators, params, x)
        (slopes,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        curvatures = [
            torch.autograd.grad(slopes[:, axis].sum(), x, retain_graph=True)[0][:, axis]
            for axis in range(2)
        ]
        return torch.stack(curvatures).sum(0)

    return Workload(
        "PINN, Laplacian",
        f"{width} wide, {points} points",
        program,
        by_hand,
        (mlp_parameters([2, width, width, 1]), inputs(points, 2)),
    )


def maml(width: int, tasks: int) -> Workload:
    """The meta-gradient of networks that take three steps on their tasks (Finn 2017)."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def loss(params: Parameters, x: Tensor, y: Tensor) -> Tensor:
            return ((mlp(ops, params, x) - y) ** 2).mean()

        def adapted(params: Parameters, x: Tensor, y: Tensor) -> Tensor:
            for _ in range(INNER_STEPS):
                params = _step(params, transforms.grad(loss)(params, x, y))
            return loss(params, -x, -y)

        def mean(params: Parameters, x: Tensor, y: Tensor) -> Tensor:
            return transforms.vmap(adapted, (None, 0, 0))(params, x, y).mean()

        return transforms.grad(mean)

    def by_hand(params: Parameters, x: Tensor, y: Tensor) -> Any:
        def loss(params: Parameters, x: Tensor, y: Tensor) -> Tensor:
            return ((mlp(batched_operators, params, x) - y) ** 2).mean((1, 2)).sum()

        leaves = [param.detach().requires_grad_() for param in params]
        adapted = [leaf.expand(tasks, *leaf.shape) for leaf in leaves]
        for _ in range(INNER_STEPS):
            gradients = torch.autograd.grad(loss(adapted, x, y), adapted, create_graph=True)
            adapted = _step(adapted, gradients)
        return torch.autograd.grad(loss(adapted, -x, -y) / tasks, leaves)

    x = inputs(tasks, 8, 1)
    return Workload(
        f"MAML, {INNER_STEPS} inner steps",
        f"{width} wide, {tasks} tasks",
        program,
        by_hand,
        (mlp_parameters([1, width, width, 1]), x, x.sin()),
    )


def _step(params: Parameters, gradients: Parameters) -> Parameters:
    return [param - RATE * of for param, of in zip(params, gradients, strict=True)]
