"""Every example reproduces the figures it states; examples/README.md lists them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples import tracing

ROOT = Path(__file__).parents[2]
# The demo and the trace of it measure times, which a test does not judge; the others are not
# examples.
OTHERS = {
    "__init__",
    "digits",
    "tracing",
    "figures",
    "mpc",
    "notebooks",
    "out_of_python",
    "pictures",
    "ranks",
    "sparse_matrices",
}
EXAMPLES = sorted({path.stem for path in (ROOT / "examples").glob("*.py")} - OTHERS)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_reproduces_its_figures(example):
    quietly = ("-W", "ignore:`torch.jit")  # used by some of torch's forward mode
    command = [sys.executable, *quietly, "-m", f"examples.{example}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if "needs a GPU" in done.stdout and not torch.cuda.is_available():
        pytest.skip(done.stdout.strip())
    assert ": reproduced" in done.stdout
    assert done.stderr == ""


def test_the_trace_of_the_demo_shows_every_layer():
    trace = tracing.traced()
    assert [call.place for call in trace.calls] == ["vmap (level 1)"]
    places = {row.place for row in trace.summary().rows}
    assert {"grad (level 2)", "vmap (level 1)", "kernel"} <= places
