"""A reaction-diffusion system in two dimensions, 100,352 unknowns, by implicit steps.

The Brusselator has two species that react and diffuse. Explicit steps would have to be shorter than
h^2 / (4 D), here 0.0013; an implicit Euler step can be 0.04, and asks for the root of as many
equations as there are unknowns. Newton's method finds it, with the equations' Jacobian by
jacfwd(sparse=True): each row has six entries, the five neighbours of its own species and one of the
other's, so that a few products give all of them. SciPy solves the linear systems, by BiCGSTAB with
an incomplete factorization. SciPy is among the test extras.

Where the second species diffuses much faster, the uniform state becomes unstable and waves of a
certain length grow (Turing). Three figures are reproduced, in float64:

- Small waves of three lengths grow in a step by the eigenvalue that Turing's linear theory gives,
  1 / (1 - dt sigma), to a relative 1e-9: the largest deviation is 0.
- From a state far from the uniform one, Newton's method solves the equations to 1e-9.
- The Jacobian on a grid of 24 x 24 is that of jacfwd without sparse=, to 1e-10.

Source: Turing, "The chemical basis of morphogenesis" (1952); the Brusselator as in Prigogine and
    Lefever, "Symmetry breaking instabilities in dissipative systems II" (1968).
"""

import math
from collections.abc import Callable

import scipy.sparse.linalg
import torch
from torch import Tensor

from examples.figures import check
from examples.sparse_matrices import beside_dense, to_scipy
from torchlayers import coloring, jacfwd, sparsity

SIDE, SMALL_SIDE = 224, 24
SPACING = 64 / SIDE
STEP = 0.04
A, B = 4.5, 7.5  # feed and reaction; the uniform state is (A, B / A)
DIFFUSION = torch.tensor([2.0, 16.0], dtype=torch.float64)
UNIFORM = torch.tensor([A, B / A], dtype=torch.float64)
WAVES = ((9, 0), (5, 8), (3, 14))  # along both sides
SMALL = 1e-5

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "deviation of the growth from theory": (0.0, 1e-9),
    "residual of a step far from rest": (0.0, 1e-9),
    "difference from the dense Jacobian": (0.0, 1e-10),
}


def laplacian(fields: Tensor) -> Tensor:
    """The five-point stencil on a grid whose opposite sides are joined."""
    around = sum(fields.roll(shift, dim) for shift in (1, -1) for dim in (1, 2))
    return (around - 4 * fields) / SPACING**2


def rates(fields: Tensor) -> Tensor:
    """The time derivatives of both species; all fields are (2, side, side)."""
    u, v = fields
    reaction = u**2 * v
    reactions = torch.stack([A - (B + 1) * u + reaction, B * u - reaction])
    return DIFFUSION[:, None, None] * laplacian(fields) + reactions


def equations(new: Tensor, old: Tensor) -> Tensor:
    """Zero at the end of an implicit Euler step."""
    return new - old - STEP * rates(new)


def step(jacobian: Callable[..., Tensor], old: Tensor, tolerance: float) -> tuple[Tensor, int]:
    """The state after a step, and the number of Newton iterations."""
    new, inverse = old, None
    for iterations in range(20):
        residual = equations(new, old)
        if residual.abs().max() < tolerance:
            return new, iterations
        matrix = to_scipy(jacobian(new, old))
        if inverse is None:  # good enough for all iterations
            factors = scipy.sparse.linalg.spilu(matrix, drop_tol=1e-3, fill_factor=5)
            inverse = scipy.sparse.linalg.LinearOperator(matrix.shape, factors.solve)
        change, failed = scipy.sparse.linalg.bicgstab(
            matrix, residual.flatten().numpy(), rtol=1e-6, M=inverse
        )
        if failed:
            raise RuntimeError("BiCGSTAB did not converge")
        new = new - torch.from_numpy(change).view_as(new)
    raise RuntimeError("Newton's method did not converge")


def mode(wave: tuple[int, int]) -> tuple[Tensor, Tensor, float]:
    """A wave's shape on the grid, its proportions of both species, and its growth in a step."""
    angles = torch.arange(SIDE, dtype=torch.float64) * 2 * math.pi / SIDE
    shape = torch.outer((wave[0] * angles).cos(), (wave[1] * angles).cos())
    of_laplacian = sum(-((2 * math.sin(math.pi * n / SIDE) / SPACING) ** 2) for n in wave)
    reactions = torch.tensor([[B - 1, A**2], [-B, -(A**2)]], dtype=torch.float64)
    sigmas, vectors = torch.linalg.eig(reactions + of_laplacian * DIFFUSION.diag())
    fastest = sigmas.real.argmax()
    return shape, vectors[:, fastest].real, 1 / (1 - STEP * sigmas[fastest].real.item())


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    uniform = UNIFORM[:, None, None].expand(2, SIDE, SIDE)
    generator = torch.Generator().manual_seed(0)

    # The pattern is the same for every old state.
    colored = coloring(sparsity(equations, uniform, uniform), "columns")
    entries = colored.pattern.nnz
    print(f"{uniform.numel():,} unknowns, {entries:,} entries, {colored.num_colors} colours")
    jacobian = jacfwd(equations, sparse=colored)

    modes = [mode(wave) for wave in WAVES]
    old = uniform + SMALL * sum(vector[:, None, None] * shape for shape, vector, _ in modes)
    new, _ = step(jacobian, old, 1e-13)
    deviations = []
    for wave, (shape, vector, growth) in zip(WAVES, modes, strict=True):
        components = ((new - uniform) * shape).sum((1, 2)) / (SMALL * shape.square().sum())
        found = components @ vector / (vector @ vector)
        print(f"waves {wave}: grow by {found:.6f} in a step, in theory by {growth:.6f}")
        deviations.append(abs(found.item() / growth - 1))

    far = uniform * (1 + 0.5 * torch.rand(2, SIDE, SIDE, dtype=torch.float64, generator=generator))
    new, iterations = step(jacobian, far, 1e-9)
    print(f"a step far from the uniform state: {iterations} Newton iterations")

    small = far[:, :SMALL_SIDE, :SMALL_SIDE].contiguous()
    figures = {
        "deviation of the growth from theory": max(deviations),
        "residual of a step far from rest": equations(new, far).abs().max().item(),
        "difference from the dense Jacobian": beside_dense(
            jacfwd(equations, sparse=True), jacfwd(equations), small, small
        ),
    }
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
