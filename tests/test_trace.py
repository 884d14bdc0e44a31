"""The record of what the layers did."""

import subprocess
import sys

import torch

import torchlayers as tl


def test_each_step_of_each_operator_is_recorded():
    with tl.trace() as events:
        tl.vmap(tl.grad(torch.sin))(torch.ones(2))
    steps = [(event.step, event.op, event.layer) for event in events]
    assert steps[:4] == [
        ("process", "aten::sin", "grad (level 2)"),
        ("rule", "aten::sin", "grad (level 2)"),
        ("process", "aten::sin", "vmap (level 1)"),
        ("send_down", "aten::sin", "vmap (level 1)"),
    ]


def test_the_reverse_pass_runs_below_its_layer():
    with tl.trace() as events:
        tl.vmap(tl.grad(torch.sin))(torch.ones(2))
    assert {event.layer for event in events if event.op == "aten::cos"} == {"vmap (level 1)"}


def test_a_backward_of_autograds_own_is_not_recorded_at_its_level():
    with tl.trace() as events:
        tl.grad(lambda x: x.renorm(2, 0, 1.0).sum())(torch.ones(2, 2))
    assert [event.step for event in events if event.op == "aten::reciprocal"] == [
        "process",
        "send_down",
    ]


def test_nothing_is_recorded_outside_the_block():
    with tl.trace() as events:
        pass
    tl.grad(torch.sin)(torch.tensor(1.0))
    assert events == []


def test_recordings_nest():
    with tl.trace() as outer:
        torch.ones(1)
        with tl.trace() as inner:
            tl.vmap(torch.neg)(torch.ones(2))
    assert [repr(event) for event in inner] == [repr(event) for event in outer]
    assert len(inner) == 2


def test_the_environment_variable_prints_the_steps():
    program = "import torch, torchlayers as tl; tl.vmap(torch.neg)(torch.ones(2))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"TORCHLAYERS_TRACE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr.splitlines() == [
        "vmap (level 1) process aten::neg",
        "vmap (level 1) send_down aten::neg",
    ]
