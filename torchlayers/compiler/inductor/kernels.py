"""Inductor's kernels compiled a few at a time.

For the CPU inductor writes each kernel into a file of its own, and has the C++ compiler make a
module for Python of it. For a small kernel a compiler takes most of its time to begin and to end.
Here the kernels of a graph are shared out to as many files as are compiled at a time, or to fewer
where they are short. Nothing is made for Python: a program calls them by their addresses
(wrapper_program.py).
"""

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from torchlayers._C import Program, ProgramWriter, RecordedValue
from torchlayers.compiler.inductor.linking import link_lightly

# How many tensors a kernel is called with at most: csrc/compiled/kernels.h.
_MOST = 80
# How many letters take the compiler as long as a file with nothing but the header does, about.
_WORTH_A_FILE = 16_000
_HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
# All that inductor writes for a kernel: the header, and a function of this name.
_KERNEL = re.compile(
    r'\s*#include <torch/csrc/inductor/cpp_prefix\.h>\s*(extern "C"\s[^({;]*\bkernel\(.*)',
    re.DOTALL,
)

# Who takes the methods of AsyncCompile's place.
_patching = threading.RLock()


class Kernel:
    """A function in C that takes the addresses of so many tensors' elements."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.address: int | None = None  # until it is compiled

    def __call__(self, *tensors: Tensor) -> None:
        self._program(tensors)

    @functools.cached_property
    def _program(self) -> Program:
        assert self.address is not None
        writer = ProgramWriter(self.count)
        writer.call_kernel(self.address, [RecordedValue(i) for i in range(self.count)], "kernel")
        return writer.finish([])


class _Source:
    def __init__(self, kernel: Kernel, text: str) -> None:
        self.kernel = kernel
        self.text = text


@contextlib.contextmanager
def compiled_together() -> Iterator[None]:
    """What inductor compiles in here, on this thread, is compiled by this module, at the end."""
    from torch._inductor import async_compile

    compiler: Any = async_compile.AsyncCompile
    thread, sources = threading.get_ident(), list[_Source]()

    def cpp_pybinding(self: Any, types: list[str], source: str) -> Any:
        if threading.get_ident() == thread and (read := _read(types, source)) is not None:
            sources.append(read)
            return read.kernel
        return alone(self, types, source)

    with _patching:
        alone = compiler.cpp_pybinding
        compiler.cpp_pybinding = cpp_pybinding
        try:
            yield
            _compile(sources)
        finally:
            compiler.cpp_pybinding = alone


def _read(types: Sequence[str], text: str) -> _Source | None:
    """None where it is more than is known here: it takes numbers, or has functions of its own."""
    found = _KERNEL.fullmatch(text)
    are_addresses = len(types) <= _MOST and all(kind.endswith("*") for kind in types)
    if found is None or not are_addresses or text.count('extern "C"') != 1:
        return None
    return _Source(Kernel(len(types)), found[1])


def _compile(sources: Sequence[_Source]) -> None:
    """Gives the kernels their addresses."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if not sources:
        return
    files = _shared_out(sources, get_compile_threads())
    try:
        # One of them on this thread: inductor's own wait for each other 50 ms at a time.
        first, *others = map(_library, files)
        waiting = [AsyncCompile.submit(library) for library in others]
        libraries = [first(), *(library.result() for library in waiting)]
        for file, library in zip(files, libraries, strict=True):
            for i, source in enumerate(file):
                source.kernel.address = ctypes.cast(library[f"kernel_{i}"], ctypes.c_void_p).value
    finally:  # it keeps what a compiler ended with, too: an interrupt, a full disk
        _libraries().cache.clear()


def _shared_out(sources: Sequence[_Source], at_a_time: int) -> list[list[_Source]]:
    """The longest first, each to the file that is the shortest so far."""
    worth = 1 + sum(len(source.text) for source in sources) // _WORTH_A_FILE
    shared: list[list[_Source]] = [[] for _ in range(min(at_a_time, len(sources), worth))]
    lengths = [0] * len(shared)
    for source in sorted(sources, key=lambda source: -len(source.text)):
        shortest = lengths.index(min(lengths))
        shared[shortest].append(source)
        lengths[shortest] += len(source.text)
    return shared


def _library(file: Sequence[_Source]) -> Callable[[], ctypes.CDLL]:
    """What compiles and loads it."""
    renamed = [
        f"#define kernel kernel_{i}\n{source.text}\n#undef kernel\n"
        for i, source in enumerate(file)
    ]
    load: Callable[[], ctypes.CDLL] = _libraries().load_async(
        "".join([_HEADER, *renamed]), submit_fn=link_lightly
    )
    return load


@functools.cache
def _libraries() -> Any:
    """Inductor's cache on disk, by its flags for kernels and with its precompiled header."""
    from torch._inductor import codecache

    of_modules: Any = codecache.CppPythonBindingsCodeCache

    class Libraries(of_modules):  # type: ignore[misc]
        cache: dict[str, Any] = {}  # noqa: RUF012  # by the name that inductor has for it

        @staticmethod
        def _load_library_inner(path: str, key: str) -> ctypes.CDLL:
            return ctypes.CDLL(path)

    return Libraries
