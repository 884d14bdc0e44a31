"""Kernels are linked against empty libraries, and torch's functions are resolved at load time."""

import errno
import os
import subprocess

import pytest
import torch
from torch._inductor import cpp_builder

import torchlayers as tl
from torchlayers.compiler.inductor import linking

LIBRARIES = os.path.join(os.path.dirname(torch.__file__), "lib")
pytestmark = pytest.mark.skipif(
    not os.path.exists(os.path.join(LIBRARIES, "libtorch_cpu.so")),
    reason="torch's libraries are called otherwise",
)
X = torch.randn(64, 33)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The list of compiler commands; the cache on disk is empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    linking._flags.cache_clear()
    found = []
    build = cpp_builder.CppBuilder.build
    monkeypatch.setattr(
        cpp_builder.CppBuilder,
        "build",
        lambda self: (found.append(self.get_command_line()), build(self)),
    )
    yield found
    linking._flags.cache_clear()


def check(f):
    compiled = tl.compile(f)
    torch.testing.assert_close(compiled(X), f(X))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_functions_of_torchs_libraries_are_found(commands, tmp_path):
    check(lambda x: x.sin() + x.cos().erf())
    folder = tmp_path / "torchlayers" / "named"
    assert f"-L{folder} " in commands[-1]
    assert all(path.stat().st_size < 100_000 for path in folder.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [
        "libtorch.so",
        "libtorch_cpu.so",
        "libtorch_python.so",
    ]
    assert [path.name for path in (tmp_path / "torchlayers").iterdir()] == ["named"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "error", [subprocess.CalledProcessError(1, "c++"), OSError(errno.ENOSPC, "No space left")]
)
def test_linking_falls_back_to_inductors(error, commands, monkeypatch):
    def refuse(_):
        raise error

    monkeypatch.setattr(linking, "_make", refuse)
    check(lambda x: x.sin() - x.cos().erf())
    assert "--no-as-needed" not in commands[-1]


def test_libraries_may_be_built_twice(tmp_path):
    for _ in range(2):
        linking._make(str(tmp_path / "torchlayers" / "named"))
    assert [path.name for path in (tmp_path / "torchlayers").iterdir()] == ["named"]
