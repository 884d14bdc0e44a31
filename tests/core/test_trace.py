"""The trace: a record of what the layers did."""

import subprocess
import sys

import pytest
import torch

import torchlayers as tl
from torchlayers import _C


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


def printed(how_much, function):
    """The lines that a process prints with TORCHLAYERS_TRACE in its environment."""
    program = f"import torch, torchlayers as tl; {function}(torch.ones(2))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"TORCHLAYERS_TRACE": how_much, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr.splitlines()


@pytest.mark.parametrize("nothing", ["", "0"])
def test_environment_variable_may_disable_tracing(nothing):
    assert printed(nothing, "tl.vmap(torch.neg)") == []


def test_the_environment_variable_prints_the_steps():
    assert printed("1", "tl.vmap(torch.neg)") == [
        "vmap (level 1) process aten::neg",
        "vmap (level 1) send_down aten::neg",
    ]


def test_the_environment_variable_prints_the_stack_and_the_keys_at_front_and_back():
    # renorm has no rule, so autograd's kernel records it and sends it to the back key.
    lines = printed("2", "tl.grad(lambda x: x.view(1, 2).renorm(2, 0, 1.0).sum())")
    assert "grad (level 1) send_down aten::renorm" in lines
    at = {where: lines.index(f"{where} aten::renorm stack [1:grad]") for where in ("front", "back")}
    assert at["front"] < at["back"]
    keys = {
        (where, which): next(
            line for line in lines[place:] if line.startswith(f"  {which} DispatchKeySet(")
        )
        for where, place in at.items()
        for which in ("included", "excluded")
    }
    assert _C.FRONT_KEY in keys["front", "included"]
    assert _C.FRONT_KEY not in keys["back", "included"]
    assert _C.BACK_KEY in keys["back", "included"]
    assert "FuncTorchBatched" in keys["back", "excluded"]
    assert "FuncTorchBatched" not in keys["front", "excluded"]
