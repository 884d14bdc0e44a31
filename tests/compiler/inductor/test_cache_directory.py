"""Compilation when Inductor's cache directory can't be used."""

import errno
import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler.inductor import cache_directory

PROGRAM = """
import sys, warnings, torch, torchlayers as tl

def calls(backend):
    f = tl.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(f(x), x.sin() + 1)
        torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], x.cos())
    tl.compile(tl.vmap(tl.grad(torch.sin)), backend=backend)(x.detach())
    return f.report().signatures[0].how

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert calls("replay") == "replay"
    assert not caught, caught[0].message
    assert calls("inductor") == "replay (no cache directory)"
(warning,) = caught
print(warning.message)
try:
    tl.compile(torch.sin).lower(torch.ones(2)).save(sys.argv[1])
except tl.errors.TransformError as error:
    print(error)
"""


def made_unusable(kind, folder):
    place = folder / "place"
    if kind == "a file in its place":
        place.write_text("")
    elif kind == "a file above it":
        place.write_text("")
        place /= "cache"
    elif kind == "one that can't be made":
        place = "/proc/nope/cache"
    else:
        place = "/proc/self"
    return str(place)


@pytest.mark.full  # a process that compiles
@pytest.mark.parametrize(
    "kind",
    ["a file in its place", "a file above it", "one that can't be made", "one that is read-only"],
)
def test_unusable_directory_warns_once_and_calls_still_work(kind, tmp_path):
    place = made_unusable(kind, tmp_path)
    if place.startswith("/proc") and not os.path.exists("/proc/self"):
        pytest.skip("this system has no /proc")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), tmp_path / "f.pt2"],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": place},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    said = f"inductor's cache directory {place!r} can't be used ("
    warned, refused = run.stdout.splitlines()
    assert warned.startswith(f"torchlayers: compile: {said}")
    assert "Set TORCHINDUCTOR_CACHE_DIR to a directory" in warned
    assert refused.startswith(f"torchlayers: save: {said}")


def test_full_directory_is_tried_again(monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, "No space left on device", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    compiled = tl.compile(lambda x: x.sin() + 1)
    with pytest.warns(
        UserWarning, match=r"No space left .* retried later, when there may be space"
    ):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin() + 1)


def test_errors_caused_by_the_directory_are_recognized(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    inside = OSError(errno.EACCES, "Permission denied", str(tmp_path / "aa" / "code.cpp"))
    error = RuntimeError("inductor")
    error.__cause__ = inside
    assert cache_directory.unusable_reason(error) == "Permission denied"
    elsewhere = OSError(errno.EACCES, "Permission denied", "/elsewhere/code.cpp")
    assert cache_directory.unusable_reason(elsewhere) is None
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "code.cpp"))
    assert cache_directory.unusable_reason(full) is None
