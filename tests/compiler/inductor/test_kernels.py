"""Inductor's kernels, grouped into as many files as are compiled at a time."""

import ctypes
import errno
import threading

import pytest
import torch
from torch._inductor import config, cpp_builder
from torch._inductor.async_compile import AsyncCompile

import torchlayers as tl
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor import kernels
from torchlayers.compiler.inductor.kernels import Kernel
from torchlayers.compiler.inductor.patches import patched_inductor

X = torch.randn(64, 64)


def chain(count, shift):
    """Returns a function of `count` kernels between products; `shift` tells tests apart."""

    def f(x):
        for i in range(count):
            x = (x @ x / 64).sin() + i / 64 + shift
        return x

    return f


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Makes Inductor's cache on disk an empty directory."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


@pytest.fixture
def built(monkeypatch):
    """The list of files that the compiler was called for."""
    files = []
    build = cpp_builder.CppBuilder.build
    monkeypatch.setattr(
        cpp_builder.CppBuilder,
        "build",
        lambda self: (files.append(self.get_target_file_path()), build(self)),
    )
    return files


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("at_a_time", "files"), [(1, 1), (2, 2), (8, 3)])
@pytest.mark.usefixtures("empty_cache")
def test_kernels_share_files(at_a_time, files, built, monkeypatch):
    monkeypatch.setattr(kernels, "_MIN_FILE_LENGTH", 1)
    f = chain(3, shift=at_a_time / 64)
    torch.testing.assert_close(tl.compile(torch.cos)(X), X.cos())  # builds the shared files
    built.clear()
    with config.patch(compile_threads=at_a_time):
        compiled = tl.compile(f)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), f(X))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]
    assert len(built) == files


def test_compiled_kernels_are_found_on_disk(built):
    f = chain(2, shift=0.5)
    expected = tl.compile(f)(X)
    built.clear()
    torch.testing.assert_close(tl.compile(f)(X), expected, rtol=0, atol=0)
    assert built == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
@pytest.mark.usefixtures("empty_cache")
def test_compiler_error_is_not_cached(error, monkeypatch):
    build, errors = cpp_builder.CppBuilder.build, [error]

    def fails_once(self):
        if errors:
            raise errors.pop()
        build(self)

    monkeypatch.setattr(cpp_builder.CppBuilder, "build", fails_once)
    f = chain(2, shift=0.125 if error is KeyboardInterrupt else 0.875)
    with (
        pytest.raises(KeyboardInterrupt)
        if error is KeyboardInterrupt
        else pytest.warns(UserWarning, match="No space left")
    ):
        tl.compile(f)(X)
    compiled = tl.compile(f)
    torch.testing.assert_close(compiled(X), f(X))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_kernels_run_from_python_with_an_unknown_wrapper(monkeypatch):
    monkeypatch.setattr(inductor, "build", lambda *_: None)
    f = chain(2, shift=0.25)
    compiled = tl.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_a_kernel_is_called_from_python():
    signature = ctypes.CFUNCTYPE(
        None, ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_float)
    )
    called = signature(lambda x, y: x.__setitem__(0, y[1]))
    kernel = Kernel(2)
    kernel.address = ctypes.cast(called, ctypes.c_void_p).value
    x, y = torch.zeros(2), torch.tensor([1.0, 2.0])
    for _ in range(2):
        assert kernel(x, y) is None
    assert x.tolist() == [2, 0]


KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
    out_ptr0[0] = in_ptr0[0];
}
"""
ADDRESSES = ["const float*", "float*"]
ALONE = {
    "numbers among its arguments": (["const float*", "const int64_t"], KERNEL),
    "more tensors than are passed at once": (["float*"] * 81, KERNEL),
    "another header": (ADDRESSES, KERNEL.replace("cpp_prefix", "other")),
    "a function before it": (ADDRESSES, KERNEL.replace("extern", "void f() {}\nextern")),
    "two functions": (ADDRESSES, KERNEL + 'extern "C" void other() {}'),
}


def test_a_kernel_of_addresses_shares_a_file():
    assert kernels.read_source(ADDRESSES, KERNEL) is not None


@pytest.mark.parametrize(("types", "source"), ALONE.values(), ids=ALONE)
def test_other_kernels_are_compiled_alone(types, source):
    assert kernels.read_source(types, source) is None


@pytest.mark.sweep
@pytest.mark.usefixtures("empty_cache")
def test_short_kernels_share_one_file(built):
    f = chain(3, shift=0.375)
    torch.testing.assert_close(tl.compile(torch.cos)(X), X.cos())
    built.clear()
    with config.patch(compile_threads=8):
        torch.testing.assert_close(tl.compile(f)(X), f(X))
    assert len(built) == 1


def test_kernels_are_added_to_the_shortest_file(monkeypatch):
    monkeypatch.setattr(kernels, "_MIN_FILE_LENGTH", 1)
    sources = [kernels.Source(Kernel(0), "x" * length) for length in (1, 5, 2, 3, 3)]
    shared = kernels._balance_files(sources, 2)
    assert [[len(source.text) for source in file] for file in shared] == [[5, 2], [3, 3, 1]]
    monkeypatch.setattr(kernels, "_MIN_FILE_LENGTH", 8)
    assert len(kernels._balance_files(sources, 8)) == 2


def test_other_threads_compile_separately(monkeypatch):
    alone = []
    monkeypatch.setattr(kernels, "compile_together", lambda sources: None)
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *args: alone.append(args[1:]))
    with patched_inductor():
        thread = threading.Thread(target=lambda: AsyncCompile().cpp_pybinding(ADDRESSES, KERNEL))
        thread.start()
        thread.join()
        assert isinstance(AsyncCompile().cpp_pybinding(ADDRESSES, KERNEL), Kernel)
    assert alone == [(ADDRESSES, KERNEL)]
    AsyncCompile().cpp_pybinding(ADDRESSES, KERNEL)
    assert len(alone) == 2
