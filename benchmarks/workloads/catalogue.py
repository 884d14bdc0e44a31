"""All workloads, each small and large, with the bar for our time relative to torch.func's."""

from benchmarks.workloads import jacobians, losses, physics
from benchmarks.workloads.workload import Workload

SMALL_BAR, LARGE_BAR = 0.67, 1.00  # small ones have small operators, in large ones kernels dominate


def small() -> list[Workload]:
    return [
        losses.cnn_gradients(8),
        losses.transformer_gradients(width=16, blocks=1, length=8, batch=4),
        losses.hessian_vector_product(8),
        jacobians.ensemble(width=8, samples=4),
        jacobians.jacobian([4, 16, 16, 8]),
        jacobians.hessian(8),
        jacobians.neural_tangent_kernel(width=8, samples=4),
        physics.maml(width=16, tasks=4),
        physics.laplacian(width=16, points=32),
        physics.forces(13),
        physics.force_constants(4),
    ]


def large() -> list[Workload]:
    return [
        losses.cnn_gradients(128),
        losses.transformer_gradients(width=64, blocks=2, length=32, batch=16),
        losses.hessian_vector_product(128),
        jacobians.ensemble(width=64, samples=64),
        jacobians.jacobian([32, 256, 256, 2048]),
        jacobians.hessian(128),
        jacobians.neural_tangent_kernel(width=128, samples=32),
        physics.maml(width=64, tasks=32),
        physics.laplacian(width=64, points=1024),
        physics.forces(147),
        physics.force_constants(27),
    ]


def catalogue() -> list[tuple[Workload, float]]:
    """The workloads with their bars; each small one is followed by its large one."""
    return [
        bounded
        for little, much in zip(small(), large(), strict=True)
        for bounded in ((little, SMALL_BAR), (much, LARGE_BAR))
    ]
