"""Private names of torch: the list is complete, and torch defines each as listed."""

import subprocess
import sys

import torch

from tests.repository import private_torch


def test_the_list_has_every_private_name_that_is_used():
    used, listed = private_torch.uses(), private_torch.read_list()
    advice = "run python -m tests.repository.private_torch --write"
    assert used.names == listed.names.keys(), advice
    assert used.attributes == listed.attributes, advice


def test_private_names_are_unchanged_in_torch():
    """In a new process, since torchlayers replaces one of them."""
    command = [sys.executable, "-m", "tests.repository.private_torch"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_a_changed_name_is_found(monkeypatch):
    monkeypatch.delattr(torch._C, "_dispatch_key_parse")
    monkeypatch.setattr(torch._compile, "_disable_dynamo", lambda fn, depth: fn)
    assert {
        "torch._C._dispatch_key_parse: is gone, was function(arg0)",
        "torch._compile._disable_dynamo: function(fn, depth), was function(fn, recursive)",
    } <= {*private_torch.differences()}
