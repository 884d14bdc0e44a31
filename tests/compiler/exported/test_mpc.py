"""The controller's derivatives of examples/mpc.py, also as native code in C++."""

import pytest
import torch

from examples import mpc
from examples.out_of_python import build


def entries_by_autograd(stage):
    """The entries of one stage, of torch's dense derivatives."""

    def following(stage):
        return torch.stack(list(mpc.step(stage[: mpc.STATES], stage[mpc.STATES])))

    jacobian = torch.autograd.functional.jacobian(following, stage)
    hessian = torch.autograd.functional.hessian(mpc.cost, stage)
    entries = [jacobian[place] for place in mpc.OF_JACOBIAN]
    return torch.stack(entries + [hessian[place] for place in mpc.OF_HESSIAN])


def expected_of(stages):
    return torch.stack([*map(entries_by_autograd, stages.unbind(1))], 1)


def test_entries_are_those_of_torch():
    stages = mpc.ramp(6)
    torch.testing.assert_close(mpc.derivatives(stages), expected_of(stages), rtol=0, atol=1e-13)


def test_left_out_entries_are_zero():
    stage = mpc.ramp(7)[:, 2]
    jacobian = torch.autograd.functional.jacobian(
        lambda z: torch.stack(list(mpc.step(z[: mpc.STATES], z[mpc.STATES]))), stage
    )
    hessian = torch.autograd.functional.hessian(mpc.cost, stage)
    for matrix, places in ((jacobian, mpc.OF_JACOBIAN), (hessian, mpc.OF_HESSIAN)):
        assert {tuple(place) for place in matrix.nonzero().tolist()} <= set(places)


@pytest.mark.full  # compiles it, and the C++ programs
def test_native_code_in_cpp(tmp_path):
    build(tmp_path)
    horizon = 10  # vectors, and a rest
    mpc.package(tmp_path / "mpc.pt2", horizon)
    stages = mpc.ramp(horizon)
    entries = mpc.run_package(tmp_path, tmp_path / "mpc.pt2", stages)
    torch.testing.assert_close(entries, expected_of(stages), rtol=0, atol=1e-12)
    _, total = mpc.time_package(tmp_path, tmp_path / "mpc.pt2", horizon, calls=10)
    assert total == pytest.approx(expected_of(stages).sum().item(), abs=1e-9)
