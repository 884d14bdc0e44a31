"""Compiles several of Inductor's CPU kernels per file.

For the CPU, Inductor writes each kernel to a separate file and compiles it to a Python module. For
a small kernel, most of that time is the compiler's startup and shutdown. Here, the kernels of a
graph are distributed over as many files as are compiled in parallel, or over fewer if they are
short. No Python bindings are generated: a program calls the kernels by address
(wrapper_program.py).
"""

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchlayers._C import Program, ProgramWriter, RecordedValue
from torchlayers.compiler.inductor import program_description
from torchlayers.compiler.inductor.linking import link_against_stubs
from torchlayers.core.private_names import lookup, private

async_compile = private("torch._inductor.async_compile")

# The largest number of tensors that a kernel takes: csrc/compiled/kernels.h.
_MAX_KERNEL_ARGUMENTS = 80
# About this many characters of source compile as long as a file with nothing but the header.
_MIN_FILE_LENGTH = 16_000
_HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
# All that Inductor writes for a kernel: the header, and a function named kernel.
_KERNEL = re.compile(
    r'\s*#include <torch/csrc/inductor/cpp_prefix\.h>\s*(extern "C"\s[^({;]*\bkernel\(.*)',
    re.DOTALL,
)

_CACHE = "torch._inductor.codecache.CppPythonBindingsCodeCache"
NEEDED = (f"{_CACHE}.load_async", "torch._inductor.async_compile.AsyncCompile.submit")


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


class Source:
    def __init__(self, kernel: Kernel, text: str) -> None:
        self.kernel = kernel
        self.text = text


def collect_in(sources: list[Source]) -> Callable[[Any], Callable[..., Any]]:
    """Makes the function for Inductor's AsyncCompile.cpp_pybinding: it compiles no kernel yet."""

    def make(alone: Callable[..., Any]) -> Callable[..., Any]:
        def cpp_pybinding(self: Any, types: list[str], text: str) -> Any:
            source = read_source(types, text)
            if source is None:
                return alone(self, types, text)
            sources.append(source)
            return source.kernel

        return cpp_pybinding

    return make


def read_source(types: Sequence[str], text: str) -> Source | None:
    """Reads a kernel; returns None if it takes numbers or defines other functions."""
    match = _KERNEL.fullmatch(text)
    are_addresses = len(types) <= _MAX_KERNEL_ARGUMENTS and all(
        kind.endswith("*") for kind in types
    )
    if match is None or not are_addresses or text.count('extern "C"') != 1:
        return None
    return Source(Kernel(len(types)), match[1])


def compile_together(sources: Sequence[Source]) -> None:
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


def _balance_files(sources: Sequence[Source], at_a_time: int) -> list[list[Source]]:
    """Assigns the kernels to files: the longest first, each to the shortest file so far."""
    worth = 1 + sum(len(source.text) for source in sources) // _MIN_FILE_LENGTH
    shared: list[list[Source]] = [[] for _ in range(min(at_a_time, len(sources), worth))]
    lengths = [0] * len(shared)
    for source in sorted(sources, key=lambda source: -len(source.text)):
        shortest = lengths.index(min(lengths))
        shared[shortest].append(source)
        lengths[shortest] += len(source.text)
    return shared


def _library(file: Sequence[Source]) -> Callable[[], ctypes.CDLL]:
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
    of_modules: Any = lookup(_CACHE)

    class Libraries(of_modules):  # type: ignore[misc]
        cache: dict[str, Any] = {}  # noqa: RUF012  # required by Inductor, under this name

        @staticmethod
        def _load_library_inner(path: str, key: str) -> ctypes.CDLL:
            return ctypes.CDLL(path)

    return Libraries
