"""Compiles several of Inductor's CPU kernels per file.

For the CPU, Inductor writes each kernel to a separate file and compiles it to a Python module. For
a small kernel, most of that time is the compiler's startup and shutdown. Here, the kernels of a
graph are distributed over as many files as are compiled in parallel, or over fewer if they are
short. No Python bindings are generated: a program calls the kernels by address
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
from torchlayers.compiler.inductor import program_description
from torchlayers.compiler.inductor.linking import link_against_stubs
from torchlayers.core.private_names import lookup, private

# The largest number of tensors that a kernel takes: csrc/compiled/kernels.h.
async_compile = private("torch._inductor.async_compile")

_MAX_KERNEL_ARGUMENTS = 80
# About this many characters of source compile as long as a file with nothing but the header.
_MIN_FILE_LENGTH = 16_000
_HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
# All that Inductor writes for a kernel: the header, and a function named kernel.
_KERNEL = re.compile(
    r'\s*#include <torch/csrc/inductor/cpp_prefix\.h>\s*(extern "C"\s[^({;]*\bkernel\(.*)',
    re.DOTALL,
)

# Held while a method of AsyncCompile is patched.
patching = threading.RLock()


class Kernel:
    """A C function that takes the data pointers of ``count`` tensors."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Until it is compiled, both are None.
        self.address: int | None = None
        self.function: program_description.Kernel | None = None

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
def compile_together() -> Iterator[None]:
    """Collects the kernels that Inductor would compile inside, on this thread; compiles at exit."""
    compiler = async_compile.AsyncCompile
    thread, sources = threading.get_ident(), list[_Source]()

    def cpp_pybinding(self: Any, types: list[str], source: str) -> Any:
        if threading.get_ident() == thread and (read := _read(types, source)) is not None:
            sources.append(read)
            return read.kernel
        return alone(self, types, source)

    with patching:
        alone = compiler.cpp_pybinding
        compiler.cpp_pybinding = cpp_pybinding
        try:
            yield
            _compile(sources)
        finally:
            compiler.cpp_pybinding = alone


def _read(types: Sequence[str], text: str) -> _Source | None:
    """Reads a kernel; returns None if it takes numbers or defines other functions."""
    found = _KERNEL.fullmatch(text)
    are_addresses = len(types) <= _MAX_KERNEL_ARGUMENTS and all(
        kind.endswith("*") for kind in types
    )
    if found is None or not are_addresses or text.count('extern "C"') != 1:
        return None
    return _Source(Kernel(len(types)), found[1])


def _compile(sources: Sequence[_Source]) -> None:
    """Compiles the kernels and sets their functions."""
    if not sources:
        return
    config = lookup("torch._inductor.config")
    files = _balance_files(sources, config.compile_threads or config.decide_compile_threads())
    try:
        # Compiles one of them on this thread: Inductor's workers wait in steps of 50 ms.
        first, *others = map(_library, files)
        waiting = [async_compile.AsyncCompile.submit(library) for library in others]
        libraries = [first(), *(library.result() for library in waiting)]
        for file, library in zip(files, libraries, strict=True):
            for i, source in enumerate(file):
                function = program_description.Kernel(library._name, f"kernel_{i}")
                source.kernel.function, source.kernel.address = function, function.address()
    finally:  # the cache also retains failures: an interrupt, a full disk
        _libraries().cache.clear()


def _balance_files(sources: Sequence[_Source], at_a_time: int) -> list[list[_Source]]:
    """Assigns the kernels to files: the longest first, each to the shortest file so far."""
    worth = 1 + sum(len(source.text) for source in sources) // _MIN_FILE_LENGTH
    shared: list[list[_Source]] = [[] for _ in range(min(at_a_time, len(sources), worth))]
    lengths = [0] * len(shared)
    for source in sorted(sources, key=lambda source: -len(source.text)):
        shortest = lengths.index(min(lengths))
        shared[shortest].append(source)
        lengths[shortest] += len(source.text)
    return shared


def _library(file: Sequence[_Source]) -> Callable[[], ctypes.CDLL]:
    """Returns a function that compiles and loads the file."""
    renamed = [
        f"#define kernel kernel_{i}\n{source.text}\n#undef kernel\n"
        for i, source in enumerate(file)
    ]
    load: Callable[[], ctypes.CDLL] = _libraries().load_async(
        "".join([_HEADER, *renamed]), submit_fn=link_against_stubs
    )
    return load


@functools.cache
def _libraries() -> Any:
    """Inductor's code cache, with its flags for kernels and its precompiled header."""
    of_modules: Any = lookup("torch._inductor.codecache.CppPythonBindingsCodeCache")

    class Libraries(of_modules):  # type: ignore[misc]
        cache: dict[str, Any] = {}  # noqa: RUF012  # required by Inductor, under this name

        @staticmethod
        def _load_library_inner(path: str, key: str) -> ctypes.CDLL:
            return ctypes.CDLL(path)

    return Libraries
