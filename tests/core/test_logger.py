"""The logger: what it is told, and that it is quiet by default."""

import logging
import subprocess
import sys

import pytest
import torch

import torchlayers as tl


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.DEBUG, logger="torchlayers")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_capture_and_the_reason_of_the_next_one(told):
    compiled = tl.compile(lambda x: x.sin(), backend="replay")
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    first, second = told()
    assert first.startswith("torchlayers: compile: captured <lambda>(f32[2]) in ")
    assert first.endswith(" s, 1 operators, replay")
    assert second.endswith(" replay, because argument 0 has shape (3,), was (2,)")


def test_a_fallback_is_logged_each_time(told):
    looped = tl.vmap(lambda x: x * x.sum().item(), fallback="loop")
    for _ in range(2):
        with pytest.warns(UserWarning, match="runs one sample at a time"):
            looped(torch.ones(3, 2))
    assert [message.partition(", ")[0] for message in told()] == [
        "torchlayers: vmap(<lambda>) runs one sample at a time"
    ] * 2


@pytest.mark.full  # two processes, 8 s
def test_it_is_quiet_without_a_handler():
    program = (
        "import torch, torchlayers as t; t.compile(torch.sin, backend='replay')(torch.ones(2))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stderr == run.stdout == ""
