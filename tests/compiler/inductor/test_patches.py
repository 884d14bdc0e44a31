"""Patches of Inductor apply on the compiling thread, while a graph is compiled, or are left out."""

import itertools
import logging
import threading

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler.inductor import patches
from torchlayers.compiler.inductor.patches import patched_inductor
from torchlayers.core import private_names
from torchlayers.core.private_names import lookup

PATCHES = patches.patches([])
TARGETS = [patch.target for patch in PATCHES if patches.is_there(patch.target)]
HIDDEN = [
    *(patch.target for patch in PATCHES),
    *(need for patch in PATCHES for need in patch.needs),
]
X = torch.randn(40, 33)
SHIFTS = itertools.count(1)


@pytest.fixture
def messages(caplog, monkeypatch):
    """The messages of the logger; nothing has been logged before."""
    patches._log_missing.cache_clear()
    caplog.set_level(logging.INFO, "torchlayers")
    yield lambda: [message for message in caplog.messages if "this torch has no" in message]
    patches._log_missing.cache_clear()


def check_compiled(where):
    shift = next(SHIFTS) / 64 + HIDDEN.index(where) if where else 0.5

    def f(x):
        return (x.tanh() + shift).t().reshape(20, 66).cumsum(1)

    compiled = tl.compile(f, wait=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_torch_without_it_compiles_and_says_so_once(name, messages, monkeypatch):
    monkeypatch.setattr(private_names, "WITHOUT", frozenset({name}))
    check_compiled(name)
    check_compiled(name)
    (message,) = [message for message in messages() if name in message]
    assert message.endswith("takes longer")


def test_nothing_is_said_of_what_is_there(messages):
    check_compiled(None)
    assert not [message for message in messages() if any(name in message for name in TARGETS)]


@pytest.mark.parametrize("target", TARGETS)
def test_inductor_is_as_before_afterwards(target):
    path, _, name = target.rpartition(".")

    def raw():
        return vars(lookup(path))[name]

    before = raw()
    with pytest.raises(ZeroDivisionError), patched_inductor():
        assert raw() is not before
        _ = 1 / 0
    assert raw() is before


def test_other_threads_call_inductors_functions():
    class Number:
        dtype = torch.float32

        def __str__(self):
            return "x"

    def write():
        names = ["CppOverrides", "CppVecOverrides"]
        return [lookup(f"torch._inductor.codegen.cpp.{name}").tanh(Number()) for name in names]

    plain, seen = write(), []
    with patched_inductor():
        inside = write()
        other = threading.Thread(target=lambda: seen.append(write()))
        other.start()
        other.join()
    assert seen == [plain]
    assert write() == plain
    assert not {*inside} & {*plain}
