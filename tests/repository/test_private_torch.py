"""Private names of torch: the list is complete, and torch has each as recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import private_torch
from tests.repository.private_torch import GONE, Listed

LISTED = private_torch.read_list()
MOST_NAMES, MOST_ATTRIBUTES = 124, 46


def test_the_list_has_everything_that_is_used():
    used = private_torch.uses()
    assert used.lines() == [*LISTED.lines], "run python -m tests.repository.private_torch --write"
    assert len(used.names) <= MOST_NAMES
    assert len(used.attributes) <= MOST_ATTRIBUTES


@pytest.fixture(scope="module")
def in_this_torch():
    """In a new process, since torchlayers replaces some of them."""
    command = [sys.executable, "-m", "tests.repository.private_torch", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("line", LISTED.lines)
def test_torch_has_it_as_recorded(line, in_this_torch):
    """By name: one that is gone, or that has other parameters, fails here, and no other."""
    assert in_this_torch[line] == LISTED.expected(line)


def test_a_version_that_is_not_recorded_is_compared_with_the_nearest():
    listed = Listed(["2.11", "2.15"], {"torch._x": {"2.11": GONE, "2.15": "module"}})
    versions = ["2.10", "2.12", "2.14", "2.16"]
    assert [listed.expected("torch._x", v) for v in versions] == [GONE, GONE, "module", "module"]


def test_the_list_is_read_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(private_torch, "LIST", tmp_path / "list.txt")
    private_torch.LIST.write_text(private_torch.format_list(LISTED) + "\n")
    assert private_torch.read_list() == LISTED


SOURCE = """
from torch import _ops
from torch.utils import checkpoint

from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup, patch, private, private_class
from torchlayers.core.torch_private import torch_c

inductor = private("torch._inductor")
_NAME = "torch._a.b"
Wrapped = private_class("torch._c.D")
patch("torch.e._f", make)
lookup(_NAME, None)
getattr(torch.compiler, "_flag", False)
getattr(aten.random_, "from")
torch_c._g(inductor.config)
aten._softmax.default, aten.sum
checkpoint._Frame.go(x._attribute)
_ops.HigherOrderOperator
"""


def test_names_are_found_however_they_are_spelled(monkeypatch, tmp_path):
    for file, text in {
        "core/torch_private.py": 'torch_c = private("torch._C")\n',
        "a.py": SOURCE,
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(private_torch, "PACKAGE", Path(tmp_path))
    used = private_torch.uses()
    assert used.names == {
        "torch._C._g",
        "torch._a.b",
        "torch._c.D",
        "torch._inductor.config",
        "torch._ops",
        "torch._ops.HigherOrderOperator",
        "torch.compiler._flag",
        "torch.e._f",
        "torch.utils.checkpoint._Frame.go",
    }
    assert used.attributes == {"_attribute"}
    assert used.operators == {"aten._softmax.default", "aten.random_.from", "aten.sum"}
