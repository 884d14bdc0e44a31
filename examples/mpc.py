"""The derivatives that model-predictive control of a cart-pole needs, run in C++ beside CasADi's C.

    pip install torchlayers[cpp]
    python -m examples.mpc

A controller plans a force for each of the next stages, and for that needs at each of them the
Jacobian of the dynamics, a step of Runge and Kutta's method, and the Hessian of the cost, with
respect to the four states and the force. Entries that are zero everywhere are left out: what
`sparsity` finds is 15 entries of 20, and 5 of 25. Rows are gradients, batched over the stages by
`vmap`, with the stages last in memory: so the native code computes several stages at once.

A package for each horizon is run by the C++ programs of examples/cpp. CasADi differentiates the
same functions, and its C, a loop over the stages, is compiled with gcc and the package's flags for
arithmetic; both in float64, on one thread. The program prints the times, and fails if the results
differ.

Source: the cart-pole's equations as in Barto, Sutton and Anderson, "Neuronlike adaptive elements
    that can solve difficult learning control problems" (1983), without friction; Andersson et al.,
    "CasADi: a software framework for nonlinear optimization and optimal control" (2019).
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import torchlayers as tl
from examples.figures import check
from examples.out_of_python import SOURCES, build

STATES, VARIABLES = 4, 5
HORIZONS = (8, 32, 256)
STEP = 0.02  # seconds
CART, POLE, LENGTH, GRAVITY = 1.0, 0.1, 0.5, 9.81
# What is between the loops of the native code is on the stack, and no tensor.
OPTIONS = {"aot_inductor.allow_stack_allocation": True}
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only")
EXPECTED = {"difference from CasADi": (0.0, 1e-12)}

# Numbers, tensors or CasADi's expressions: place and speed of the cart, angle and turn of the pole.
State = Sequence[Any]


def rates(state: State, force: Any) -> State:
    _, speed, angle, turn = state
    sine, cosine = angle.sin(), angle.cos()
    push = (force + POLE * LENGTH * turn * turn * sine) / (CART + POLE)
    turning = (GRAVITY * sine - cosine * push) / (
        LENGTH * (4 / 3 - POLE / (CART + POLE) * cosine * cosine)
    )
    return speed, push - POLE * LENGTH / (CART + POLE) * turning * cosine, turn, turning


def step(state: State, force: Any) -> State:
    """The state after STEP seconds, by the classical Runge-Kutta method."""

    def moved(rate: State, time: float) -> State:
        return [x + time * slope for x, slope in zip(state, rate, strict=True)]

    first = rates(state, force)
    second = rates(moved(first, STEP / 2), force)
    third = rates(moved(second, STEP / 2), force)
    fourth = rates(moved(third, STEP), force)
    mean = [
        (a + 2 * (b + c) + d) / 6 for a, b, c, d in zip(first, second, third, fourth, strict=True)
    ]
    return moved(mean, STEP)


def cost(variables: Sequence[Any]) -> Any:
    """The pole up, the cart at rest and not at an obstacle, and little force."""
    place, speed, angle, turn, force = variables
    obstacle = (-8 * (place - 0.5) * (place - 0.5)).exp()
    quadratic = place * place + 0.1 * (speed * speed + turn * turn) + 0.01 * force * force
    return quadratic + 10 * (1 - angle.cos()) + obstacle


def next_state(variables: Sequence[Any], i: int) -> Any:
    return step(variables[:STATES], variables[STATES])[i]


def patterns() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Rows and columns of the entries of the Jacobian and of the Hessian."""
    example = torch.ones(VARIABLES, dtype=torch.float64)
    jacobian = tl.sparsity(
        lambda z: torch.stack([next_state(z, i) for i in range(STATES)]), example
    )
    hessian = tl.sparsity(cost, example, of="hessian")
    return _places(jacobian), _places(hessian)


def _places(pattern: Any) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in pattern.to_dense().nonzero()]


OF_JACOBIAN, OF_HESSIAN = patterns()


def derivatives(stages: Tensor) -> Tensor:
    """The entries of the Jacobian and then of the Hessian, of shape (20, horizon).

    Args:
        stages: of shape (5, horizon), the state and the force at each stage.
    """
    variables = stages.unbind(0)

    def gradients(of_row: Callable[[Sequence[Any], int], Any], rows: int) -> list[State]:
        return [tl.vmap(tl.grad(lambda z, i=i: of_row(z, i)))(variables) for i in range(rows)]

    jacobian = gradients(next_state, STATES)
    hessian = gradients(lambda z, i: tl.grad(cost)(z)[i], VARIABLES)
    entries = [jacobian[i][j] for i, j in OF_JACOBIAN]
    return torch.stack(entries + [hessian[i][j] for i, j in OF_HESSIAN])


def ramp(horizon: int) -> Tensor:
    """The argument that time_package makes."""
    return torch.linspace(-1, 1, VARIABLES * horizon, dtype=torch.float64).view(VARIABLES, horizon)


def package(path: Path, horizon: int) -> None:
    """Exports the derivatives for a number of stages."""
    tl.export(derivatives, ramp(horizon)).to_aot(path, options=OPTIONS)


def run_package(programs: Path, path: Path, stages: Tensor) -> Tensor:
    """The package's result, computed in C++."""
    files = [programs / "stages.pt", programs / "entries.pt"]
    torch.save([stages], files[0])
    subprocess.run([programs / "run_package", path, *files], check=True, capture_output=True)
    entries: Tensor = torch.load(files[1])[0]
    return entries


def time_package(programs: Path, path: Path, horizon: int, calls: int) -> tuple[float, float]:
    """Microseconds of a call for the stages of `ramp`, and the sum of the entries."""
    program = [programs / "time_package", str(calls), path, f"double:{VARIABLES},{horizon}"]
    run = subprocess.run(program, check=True, capture_output=True, text=True)
    entries, microseconds = map(float, run.stdout.split())
    return microseconds, entries


class Casadi(NamedTuple):
    microseconds: float
    entries: Tensor


def run_casadi(folder: Path, horizon: int, calls: int) -> Casadi:
    """Generates C for all stages, compiles and times it."""
    import casadi  # type: ignore[import-not-found]

    z = casadi.SX.sym("z", VARIABLES)
    variables = casadi.vertsplit(z)
    jacobian = casadi.jacobian(
        casadi.vertcat(*[next_state(variables, i) for i in range(STATES)]), z
    )
    hessian = casadi.hessian(cost(variables), z)[0]
    entries = [jacobian[i, j] for i, j in OF_JACOBIAN] + [hessian[i, j] for i, j in OF_HESSIAN]
    stage = casadi.Function("stage", [z], casadi.cse([casadi.densify(casadi.vertcat(*entries))]))
    stages = casadi.MX.sym("stages", VARIABLES, horizon)
    generator = casadi.CodeGenerator("stages.c")
    generator.add(casadi.Function("stages", [stages], [stage.map(horizon)(stages)]))
    generator.generate(f"{folder}/")
    files = [folder / "time_casadi", folder / "stages", folder / "entries"]
    sources = [folder / "stages.c", SOURCES / "time_casadi.c"]
    subprocess.run(["gcc", *FLAGS, *sources, "-o", files[0], "-lm"], check=True)
    ramp(horizon).T.contiguous().numpy().tofile(files[1])
    command = [files[0], str(calls), *files[1:]]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    numbers = torch.from_numpy(np.fromfile(files[2])).view(horizon, -1)
    return Casadi(float(run.stdout), numbers.T)


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    programs = SOURCES.parents[1] / "build" / "cpp"
    build(programs)
    print("states x horizon      C++   CasADi's C   ratio   calls a second in C++   difference")
    difference = 0.0
    for horizon in HORIZONS:
        path = programs / f"mpc_{horizon}.pt2"
        package(path, horizon)
        calls = 20_000 // horizon
        casadi = run_casadi(programs, horizon, calls)
        ours, total = time_package(programs, path, horizon, calls)
        entries = run_package(programs, path, ramp(horizon))
        apart = (entries - casadi.entries).abs().max().item()
        difference = max(difference, apart, abs(total - entries.sum().item()) / horizon)
        size = f"{STATES} x {horizon:<5}= {STATES * horizon}"
        print(
            f"{size:18}{ours:8.1f} µs{casadi.microseconds:10.1f} µs"
            f"{ours / casadi.microseconds:8.2f}{1e6 / ours:18,.0f}{apart:17.1e}"
        )
    figures = {"difference from CasADi": difference}
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
