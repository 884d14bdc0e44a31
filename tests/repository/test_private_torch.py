"""Private names of torch: the list is complete, and torch defines each as listed."""

from tests.repository import private_torch


def test_the_list_has_every_private_name_that_is_used():
    used, listed = private_torch.uses(), private_torch.listed()
    advice = "run python -m tests.repository.private_torch --write"
    assert used.names == listed.names.keys(), advice
    assert used.attributes == listed.attributes, advice


def test_private_names_are_unchanged_in_torch():
    assert private_torch.changed() == []


def test_a_changed_name_is_found(monkeypatch):
    import torch

    monkeypatch.delattr(torch._C, "_dispatch_key_parse")
    monkeypatch.setattr(torch._compile, "_disable_dynamo", lambda fn, depth: fn)
    assert private_torch.changed() == [
        "torch._C._dispatch_key_parse: is gone, was function(arg0)",
        "torch._compile._disable_dynamo: function(fn, depth), was function(fn, recursive)",
    ]
