"""The fastest slide between two points, by the sparse Hessian of its Lagrangian.

A bead slides without friction from rest to a point pi to the right and 2 below: which path takes
the least time? Direct transcription cuts the trajectory into 2,000 intervals, with place, speed and
direction at their ends, and the equations of motion become constraints between neighbours (the
trapezoidal rule). The unknown duration is in all of them. At the optimum the Lagrangian's gradient
by all variables and multipliers is zero, which Newton's method solves for 14,010 unknowns. Its
matrix is the Hessian, banded but for the duration's dense row and column. A sparse Hessian takes
seven Hessian-vector products: a star colouring spends one colour on the duration, and reads both
its row and its column from that product. SciPy, which is among the test extras, solves the linear
systems.

The path is Bernoulli's brachistochrone, a cycloid: a point of a wheel of radius 1 that rolls half a
turn. With gravity 1 it takes a time of pi. Four figures are reproduced, in float64:

- The duration is pi within 1e-7.
- The path is the cycloid, to 1e-6.
- Half as long intervals make a fourth of the duration's error: the order is 2 within 0.05.
- For 150 intervals the Hessian is that of hessian without sparse=, to 1e-10.

Source: Betts, "Practical Methods for Optimal Control Using Nonlinear Programming" (2010), chapter
    4; the brachistochrone as in Bryson and Ho, "Applied Optimal Control" (1975), section 2.7.
"""

import math

import scipy.sparse.linalg
import torch
from torch import Tensor

from examples.figures import check
from examples.sparse_matrices import beside_dense, to_scipy
from torchlayers import coloring, grad, hessian, sparsity

COARSE, FINE = 125, 2000  # intervals
SMALL = 150
END = (math.pi, 2.0)

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "duration": (math.pi, 1e-7),
    "distance from the cycloid": (0.0, 1e-6),
    "order of convergence": (2.0, 0.05),
    "difference from the dense Hessian": (0.0, 1e-10),
}


def parts(unknowns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes (n + 1, 4), multipliers of the motion (n, 3) and of the ends (5,), and the duration.

    A node is a place to the right and downwards, a speed, and the angle from the vertical.
    """
    n = (unknowns.numel() - 10) // 7
    nodes, motion, ends, duration = unknowns.split([4 * n + 4, 3 * n, 5, 1])
    return nodes.view(n + 1, 4), motion.view(n, 3), ends, duration[0]


def lagrangian(unknowns: Tensor) -> Tensor:
    nodes, motion, ends, duration = parts(unknowns)
    state, speed, angle = nodes[:, :3], nodes[:, 2], nodes[:, 3]
    rates = torch.stack([speed * angle.sin(), speed * angle.cos(), angle.cos()], 1)
    steps = duration / len(motion) * (rates[1:] + rates[:-1]) / 2
    gap = torch.cat([state[0], state[-1, :2] - torch.tensor(END, dtype=torch.float64)])
    return duration + (motion * (state[1:] - state[:-1] - steps)).sum() + (ends * gap).sum()


def first_guess(n: int) -> Tensor:
    """Down a straight line, with multipliers that fit its ends."""
    length = math.hypot(*END)
    sine, cosine = END[0] / length, END[1] / length
    duration = math.sqrt(2 * length / cosine)
    t = torch.linspace(0, 1, n + 1, dtype=torch.float64)
    fastest = cosine * duration
    nodes = torch.stack(
        [END[0] * t**2, END[1] * t**2, fastest * t, torch.full_like(t, math.atan2(sine, cosine))], 1
    )
    one = torch.ones(n, dtype=torch.float64)
    motion = torch.stack([sine / fastest * one, cosine / fastest * one, (1 - t[1:]) / cosine], 1)
    ends = torch.zeros(5, dtype=torch.float64)
    return torch.cat([nodes.flatten(), motion.flatten(), ends, ends.new_tensor([duration])])


def refined(unknowns: Tensor, n: int) -> Tensor:
    """The same trajectory on n intervals, by linear interpolation."""
    nodes, motion, ends, duration = parts(unknowns)

    def on_finer(values: Tensor, count: int, corners: bool) -> Tensor:
        return torch.nn.functional.interpolate(
            values.T[None], count, mode="linear", align_corners=corners
        )[0].T.flatten()

    return torch.cat(
        [on_finer(nodes, n + 1, True), on_finer(motion, n, False), ends, duration[None]]
    )


def optimal(unknowns: Tensor) -> Tensor:
    """Newton's method, with shorter steps where the gradient would grow."""
    colored = coloring(sparsity(lagrangian, unknowns, of="hessian"), "star")
    second, slope = hessian(lagrangian, sparse=colored), grad(lagrangian)
    gradient = slope(unknowns)
    iterations = 0
    while gradient.abs().max() > 1e-11:
        iterations += 1
        if iterations > 50:
            raise RuntimeError("Newton's method did not converge")
        change = torch.from_numpy(
            scipy.sparse.linalg.spsolve(to_scipy(second(unknowns)), -gradient.numpy())
        )
        size = 1.0
        while size > 1e-3 and slope(unknowns + size * change).norm() > gradient.norm():
            size /= 2
        unknowns = unknowns + size * change
        gradient = slope(unknowns)
    print(
        f"{unknowns.numel():,} unknowns, {colored.num_colors} colours, {iterations} iterations: "
        f"a duration of {parts(unknowns)[3]:.9f}"
    )
    return unknowns


def cycloid(n: int) -> Tensor:
    turned = torch.linspace(0, math.pi, n + 1, dtype=torch.float64)
    return torch.stack([turned - turned.sin(), 1 - turned.cos()], 1)


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    coarse = optimal(first_guess(COARSE))
    halved = optimal(refined(coarse, 2 * COARSE))
    fine = optimal(refined(halved, FINE))
    nodes, _, _, duration = parts(fine)
    errors = [parts(each)[3].item() - math.pi for each in (coarse, halved)]
    figures = {
        "duration": duration.item(),
        "distance from the cycloid": (nodes[:, :2] - cycloid(FINE)).abs().max().item(),
        "order of convergence": math.log2(errors[0] / errors[1]),
        "difference from the dense Hessian": beside_dense(
            hessian(lagrangian, sparse=True), hessian(lagrangian), first_guess(SMALL)
        ),
    }
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
