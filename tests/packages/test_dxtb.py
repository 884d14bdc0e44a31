"""dxtb's molecular properties, which use torch.func's jacrev and autograd.Functions."""

import pytest
import torch

from tests.packages import agree_in, package

dxtb = package("dxtb")
mctc = package("tad_mctc")
package("tad_libcint")
efield = package("dxtb.components.field")

OPTIONS = {"verbosity": 0, "f_atol": 1e-9, "x_atol": 1e-9, "int_driver": "libcint"}
NUMBERS = torch.tensor([3, 1])
POSITIONS = torch.tensor([[0.0, 0.0, -1.5], [0.2, 0.0, 1.5]], dtype=torch.float64)
FIELD = torch.tensor([0.0, 0.01, -0.02], dtype=torch.float64)


def calculator(field=None):
    interaction = [] if field is None else [efield.new_efield(field)]
    return dxtb.calculators.AutogradCalculator(
        NUMBERS, dxtb.GFN1_XTB, interaction=interaction, opts=OPTIONS, dtype=torch.float64
    )


def positions():
    return POSITIONS.clone().requires_grad_()


def differences(f, x, step=1e-4):
    """Returns the Jacobian of f by central differences, one row per element of f."""
    columns = []
    for i in range(x.numel()):
        moved = torch.zeros(x.numel(), dtype=x.dtype)
        moved[i] = step
        moved = moved.view_as(x)
        columns.append((f(x + moved) - f(x - moved)) / (2 * step))
    return torch.stack(columns, dim=-1)


def energy(x):
    return calculator().get_energy(x).detach()


def energy_in(field):
    return calculator(field).get_energy(POSITIONS).detach()


def dipole_in(field):
    return -differences(energy_in, field, step=1e-3)


agree = agree_in(dxtb, mctc)


def test_forces():
    forces = agree(lambda: calculator().get_forces(positions(), grad_mode="functorch").detach())
    expected = -differences(energy, POSITIONS).view(2, 3)
    torch.testing.assert_close(forces, expected, atol=1e-6, rtol=1e-5)


def test_the_hessian():
    hessian = agree(lambda: calculator().get_hessian(positions(), use_functorch=True).detach())
    expected = differences(
        lambda x: -calculator().get_forces(x.clone().requires_grad_()).detach().flatten(), POSITIONS
    )
    torch.testing.assert_close(hessian.reshape(6, 6), expected, atol=1e-5, rtol=1e-4)


def test_the_dipole_moment():
    dipole = agree(
        lambda: (
            calculator(FIELD.clone().requires_grad_())
            .get_dipole(positions(), use_functorch=True)
            .detach()
        )
    )
    torch.testing.assert_close(dipole, dipole_in(FIELD), atol=1e-5, rtol=1e-4)


def test_the_polarizability():
    polarizability = agree(
        lambda: (
            calculator(FIELD.clone().requires_grad_())
            .get_polarizability(positions(), use_functorch=True)
            .detach()
        )
    )
    expected = differences(
        lambda field: calculator(field.clone().requires_grad_()).get_dipole(POSITIONS).detach(),
        FIELD,
        step=1e-3,
    )
    torch.testing.assert_close(polarizability, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("property_name", ["forces", "dipole"])
def test_torchs_own_autograd_beside_ours(property_name):
    """dxtb can also differentiate by torch.autograd.grad."""
    calc = calculator(FIELD.clone().requires_grad_())
    if property_name == "forces":
        other = calc.get_forces(positions(), grad_mode="autograd")
        ours = agree(
            lambda: calculator(FIELD).get_forces(positions(), grad_mode="functorch").detach()
        )
    else:
        other = calc.get_dipole(positions(), use_functorch=False)
        ours = agree(
            lambda: (
                calculator(FIELD.clone().requires_grad_())
                .get_dipole(positions(), use_functorch=True)
                .detach()
            )
        )
    torch.testing.assert_close(ours, other.detach(), atol=1e-7, rtol=1e-6)
