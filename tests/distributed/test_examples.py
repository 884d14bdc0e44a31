"""The examples over ranks, on two of them; tests/repository/test_examples.py runs them on one
process."""

import os
import subprocess
import sys

import pytest

from tests.distributed.processes import ROOT


@pytest.mark.full  # two processes, which compile: half a minute each
@pytest.mark.parametrize("example", ["hessian_spectrum", "kernel_of_blocks", "dp_sgd_over_ranks"])
def test_example_reproduces_its_figures_on_two_ranks(example):
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launched, "-m", f"examples.{example}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks; one sends" in done.stdout
    assert ": reproduced" in done.stdout
