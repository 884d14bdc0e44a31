"""Bundle adjustment: cameras and points from where the points are seen in the images.

Forty cameras on an arc look at 4,000 points, and each point is found in eight images. Levenberg and
Marquardt's method moves the cameras and the points until they explain the 32,000 places: 64,000
residuals and 12,228 unknowns. A residual depends on one camera and one point, on at most nine
numbers. No two cameras share a residual, nor do two points, so all cameras can be moved at once,
and all points: a sparse Jacobian by forward mode takes eight products, one for each number, but
for a camera's shifts to the right and downwards, which change different residuals and share one.
The Jacobian comes as a matrix for the cameras and one for the points, and Schur's complement
eliminates the points, with SciPy's sparse products. SciPy is among the test extras.

The first two cameras are known, which fixes the scale and the coordinates. Four figures are
reproduced, in float64:

- From places without noise the cameras and the points are found to 1e-8: their largest errors are
  0 (two figures).
- From places with noise of 0.5 pixels the residuals say so: their sum of squares, divided by how
  many more there are than unknowns, is the noise's variance. Its root is 0.5 within 0.005.
- With 10 cameras and 150 points the Jacobian is that of jacfwd without sparse=, to 1e-10 of its
  largest entry.

Source: Triggs, McLauchlan, Hartley and Fitzgibbon, "Bundle adjustment: a modern synthesis" (2000),
    section 6.1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from examples.figures import check
from examples.sparse_matrices import beside_dense, to_scipy
from torchlayers import coloring, jacfwd, sparsity

CAMERAS, POINTS, IMAGES = 40, 4000, 8  # images of each point
KNOWN = 2
FOCAL_LENGTH = 500.0  # in pixels
DISTANCE = 6.0
NOISE = 0.5

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "error of the cameras": (0.0, 1e-8),
    "error of the points": (0.0, 1e-8),
    "noise found": (NOISE, 0.005),
    "difference from the dense Jacobian": (0.0, 1e-10),
}


class Scene(NamedTuple):
    """The truth, and which camera sees which point."""

    cameras: Tensor  # (cameras, 6): a rotation vector, and a translation
    points: Tensor  # (points, 3)
    of_camera: Tensor  # (observations,)
    of_point: Tensor


def make_scene(cameras: int, points: int, images: int, generator: torch.Generator) -> Scene:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    poses = torch.zeros(cameras, 6, dtype=torch.float64)
    poses[:, 1] = torch.linspace(-1, 1, cameras, dtype=torch.float64)
    poses[:, 5] = DISTANCE
    poses += 0.05 * normal(cameras, 6)
    chosen = torch.rand(points, cameras, generator=generator).argsort(1)[:, :images]
    of_point = torch.arange(points).repeat_interleave(images)
    return Scene(poses, normal(points, 3).clamp(-2, 2), chosen.flatten(), of_point)


def rotated(points: Tensor, vectors: Tensor) -> Tensor:
    """Points turned about the vectors, by angles of their lengths (Rodrigues)."""
    angle = vectors.square().sum(-1, keepdim=True).sqrt()
    axis = vectors / angle
    along = axis * (axis * points).sum(-1, keepdim=True)
    across = torch.linalg.cross(axis, points)
    return along + angle.cos() * (points - along) + angle.sin() * across


def projected(cameras: Tensor, points: Tensor, scene: Scene) -> Tensor:
    """The places of all observations in the images, in pixels: (observations, 2)."""
    camera = cameras[scene.of_camera]
    seen = rotated(points[scene.of_point], camera[:, :3]) + camera[:, 3:]
    return FOCAL_LENGTH * seen[:, :2] / seen[:, 2:]


def residuals_of(scene: Scene, places: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The residuals as a function of the unknown cameras, and of the points."""

    def residuals(cameras: Tensor, points: Tensor) -> Tensor:
        everything = torch.cat([scene.cameras[:KNOWN], cameras])
        return (projected(everything, points, scene) - places).flatten()

    return residuals


def damped(normal_matrix: Any, damping: float) -> Any:
    return normal_matrix + damping * scipy.sparse.diags(normal_matrix.diagonal())


def changes(
    of_cameras: Any, of_points: Any, residuals: Any, damping: float
) -> tuple[Tensor, Tensor]:
    """The step of both; the points, each with a 3 x 3 block of its own, are eliminated."""
    camera_part = damped(of_cameras.T @ of_cameras, damping)
    blocks = damped(of_points.T @ of_points, damping).tobsr((3, 3))
    inverse = scipy.sparse.bsr_matrix(
        (np.linalg.inv(blocks.data), blocks.indices, blocks.indptr), blocks.shape
    )
    mixed = of_cameras.T @ of_points
    camera_slope, point_slope = of_cameras.T @ residuals, of_points.T @ residuals
    schur = (camera_part - mixed @ inverse @ mixed.T).toarray()
    cameras = -np.linalg.solve(schur, camera_slope - mixed @ (inverse @ point_slope))
    points = -(inverse @ (point_slope + mixed.T @ cameras))
    return torch.from_numpy(cameras).view(-1, 6), torch.from_numpy(points).view(-1, 3)


def adjust(
    residuals: Callable[[Tensor, Tensor], Tensor],
    jacobian: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    cameras: Tensor,
    points: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Levenberg and Marquardt's method: the cameras, the points and the residuals it ends with."""
    damping, now = 1e-3, residuals(cameras, points)
    matrices = [to_scipy(matrix) for matrix in jacobian(cameras, points)]
    iterations, largest = 0, 1.0
    while largest > 1e-9 and iterations < 50:
        iterations += 1
        by_cameras, by_points = changes(*matrices, now.numpy(), damping)
        new = residuals(cameras + by_cameras, points + by_points)
        if new.square().sum() < now.square().sum():
            cameras, points, now = cameras + by_cameras, points + by_points, new
            damping /= 10
            matrices = [to_scipy(matrix) for matrix in jacobian(cameras, points)]
        else:
            damping *= 10
        largest = max(by_cameras.abs().max().item(), by_points.abs().max().item())
    print(f"{iterations} iterations: {now.square().mean().sqrt():.3g} pixels of error are left")
    return cameras, points, now


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    scene = make_scene(CAMERAS, POINTS, IMAGES, generator)
    unknown = scene.cameras[KNOWN:]

    def start(truth: Tensor) -> Tensor:
        return truth + 0.02 * torch.randn(truth.shape, dtype=truth.dtype, generator=generator)

    exact = projected(scene.cameras, scene.points, scene)
    noise = NOISE * torch.randn(exact.shape, dtype=torch.float64, generator=generator)
    begin = start(unknown), start(scene.points)
    pattern = sparsity(residuals_of(scene, exact), *begin, argnums=(0, 1))
    colored = coloring(pattern, "columns")
    rows, columns = pattern.shape
    print(f"{rows:,} residuals of {columns:,} unknowns, {colored.num_colors} colours")

    found = []
    for places in (exact, exact + noise):
        residuals = residuals_of(scene, places)
        found.append(adjust(residuals, jacfwd(residuals, (0, 1), sparse=colored), *begin))
    cameras, points, _ = found[0]
    left = found[1][2]

    small = make_scene(10, 150, 8, generator)
    of_small = residuals_of(small, projected(*small[:2], small))
    at = start(small.cameras[KNOWN:]), start(small.points)
    difference = beside_dense(jacfwd(of_small, (0, 1), sparse=True), jacfwd(of_small, (0, 1)), *at)
    figures = {
        "error of the cameras": (cameras - unknown).abs().max().item(),
        "error of the points": (points - scene.points).abs().max().item(),
        "noise found": (left.square().sum() / (rows - columns)).sqrt().item(),
        "difference from the dense Jacobian": difference / FOCAL_LENGTH,
    }
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
