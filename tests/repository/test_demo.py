"""The demo runs, and fails if the gradients are wrong."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples import digits

ROOT = Path(__file__).parents[2]


def row(ours, autograd, func):
    results = {digits.OURS: ours, digits.LOOP: autograd, digits.FUNC: func}
    works = {name: lambda value=value: {"weight": value} for name, value in results.items()}
    return digits.measure("gradients", works, repetitions=1)


@pytest.mark.full  # as make demo does
def test_the_demo_runs_and_saves_its_picture(tmp_path):
    command = [sys.executable, "-m", "examples.digits", "--quick", "--output", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Hessian-vector product" in done.stdout
    assert (tmp_path / "digits.png").stat().st_size > 0


def test_rounding_passes_the_check():
    gradient = torch.tensor([1.0, -200.0])
    digits.check([row(gradient, gradient * (1 + 1e-6), gradient)])


@pytest.mark.parametrize("wrong", [0.0, 1.001, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", [digits.LOOP, digits.FUNC])
def test_wrong_gradients_fail_the_check(name, wrong):
    gradient = torch.tensor([1.0, 200.0])
    others = {digits.LOOP: gradient, digits.FUNC: gradient, name: gradient * wrong}
    with pytest.raises(SystemExit, match=f"gradients: torchlayers differs from {name}"):
        digits.check([row(gradient, others[digits.LOOP], others[digits.FUNC])])


def test_gradients_of_another_shape_fail_the_check():
    gradient = torch.ones(2, 1)
    with pytest.raises(SystemExit, match="differs from autograd by inf"):
        digits.check([row(gradient, gradient.squeeze(1), gradient)])
