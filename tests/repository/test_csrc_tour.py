"""csrc/README.md follows one operator through the layers; its statements hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
TOUR = (CSRC / "README.md").read_text().split("## What is registered on the two keys")[0]
STOPS = re.findall(r"^(\d+)\. `([\w.:]+)` (?:\(|in the table of )`([\w/.]+)`", TOUR, re.MULTILINE)


EXAMPLE, TRACE = re.findall(r"```(?:python)?\n(.*?)```", TOUR, re.DOTALL)


def test_the_trace_is_what_the_example_prints():
    program = f"import torch, torchlayers\nbatch, y = torch.ones(3, 2), torch.ones(2)\n{EXAMPLE}"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TORCHLAYERS_TRACE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == TRACE


def test_twelve_stops_and_no_more():
    assert [int(number) for number, *_ in STOPS] == [*range(1, 13)]


@pytest.mark.parametrize(("name", "file"), [stop[1:] for stop in STOPS])
def test_a_stop_is_where_the_tour_says(name, file):
    text = (CSRC / file).read_text()
    if "." in name:
        assert f'"{name}"' in text  # an operator of the table
    else:
        assert re.search(rf"\b(class )?{name}(\(| (final )?[:{{])", text)
