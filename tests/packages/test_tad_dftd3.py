"""The dispersion energy of tad-dftd3, whose derivatives are torch.func's."""

import pytest
import torch
import torch.func

from tests.packages import agree_in, package
from tests.support.calls import agree

d3 = package("tad_dftd3")
mctc = package("tad_mctc")
autograd = package("tad_mctc.autograd")

NUMBERS = torch.tensor([8, 1, 1, 6])
POSITIONS = torch.tensor(
    [[0.0, 0.0, -0.74], [1.43, 0.0, 0.37], [-1.43, 0.1, 0.37], [0.3, 4.0, 0.5]],
    dtype=torch.float64,
)
DAMPING = {
    name: torch.tensor(value, dtype=torch.float64)
    for name, value in {"s6": 1.0, "s8": 0.7875, "s9": 1.0, "a1": 0.4289, "a2": 4.4407}.items()
}


def energy(positions):
    return d3.dftd3(NUMBERS, positions, DAMPING).sum()


def energy_by(name):
    return lambda value: d3.dftd3(NUMBERS, POSITIONS, {**DAMPING, name: value}).sum()


def by_autograd(f, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


@pytest.mark.parametrize("mode", ["grad", "jacrev"])
def test_the_gradient_by_positions(mode):
    gradient = agree(lambda lib: getattr(lib, mode)(energy)(POSITIONS))
    torch.testing.assert_close(gradient, by_autograd(energy, POSITIONS))


@pytest.mark.parametrize("name", DAMPING)
def test_the_gradient_by_a_parameter(name):
    gradient = agree(lambda lib: lib.jacrev(energy_by(name))(DAMPING[name]))
    torch.testing.assert_close(gradient, by_autograd(energy_by(name), DAMPING[name]))


def test_the_hessian():
    def hessian(lib):
        return lib.jacrev(lib.jacrev(energy))(POSITIONS)

    ours = agree(hessian)
    columns = []
    for i in range(POSITIONS.numel()):
        step = torch.zeros(POSITIONS.numel(), dtype=torch.float64)
        step[i] = 1e-4
        step = step.view_as(POSITIONS)
        moved = [by_autograd(energy, POSITIONS + sign * step) for sign in (1, -1)]
        columns.append((moved[0] - moved[1]) / 2e-4)
    expected = torch.stack(columns, dim=-1).view_as(ours)
    torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-4)


def test_tad_mctcs_own_hessian():
    agree_in(mctc, d3)(lambda: autograd.hess_fn_rev(energy)(POSITIONS).detach())
