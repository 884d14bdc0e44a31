"""Links kernels against empty stub libraries in place of torch's.

A linker reads all symbols of a library, and torch's has hundreds of thousands: that takes as long
as compiling a small kernel. The few symbols that a kernel uses, such as a vectorized sine, are
resolved at load time, when torch's library is already in memory. For that, the kernel only has to
name the library.
"""

import functools
import os
import shutil
import subprocess
import tempfile
from typing import Any

import torch

from torchlayers.compiler.inductor import cache_directory
from torchlayers.core.private_names import lookup

_NEEDED = "libtorch_cpu.so"
# Other libraries that Inductor passes to the linker, though kernels use nothing from them.
_ALSO_READ = ("libtorch.so", "libtorch_python.so")


def link_against_stubs(task: Any) -> None:
    """Changes the link flags of a compile task that Inductor is about to submit."""
    flags = _flags(cache_directory.directory())
    for builder in getattr(task, "args", [None, ()])[1]:
        if flags and hasattr(builder, "_ldflags_args"):
            builder._ldflags_args = f"{flags} {builder._ldflags_args}"


@functools.cache
def _flags(cache: str) -> str:
    """The link flags; empty if the libraries have other names, or the stubs can't be built."""
    if not os.path.exists(os.path.join(os.path.dirname(torch.__file__), "lib", _NEEDED)):
        return ""
    folder = os.path.join(cache, "torchlayers", "named")
    try:
        if not os.path.exists(folder):
            _make(folder)
    except (OSError, subprocess.CalledProcessError):
        return ""
    quick = "-fuse-ld=gold " if shutil.which("ld.gold") else ""
    # -w: the compiler would print thousands of lines of warnings about torch's header.
    return f"-w {quick}-L{folder} -Wl,--no-as-needed"


def _compiler() -> str:
    """The first of the compilers that Inductor may use that is there, or one that is not."""
    named = [name for name in lookup("torch._inductor.config").cpp.cxx if name]
    return next(filter(None, map(shutil.which, named)), named[0])


def _make(folder: str) -> None:
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as aside:
        stubs = os.path.join(aside, "made")
        os.mkdir(stubs)
        library = os.path.join(stubs, _NEEDED)
        named = ["-shared", "-nostdlib", f"-Wl,-soname,{_NEEDED}", "-o", library]
        command = [
            _compiler(),
            *named,
            "-x",
            "c++",
            os.devnull,
        ]
        subprocess.run(command, check=True, capture_output=True)
        for name in _ALSO_READ:
            shutil.copy(library, os.path.join(stubs, name))
        try:
            os.rename(stubs, folder)
        except OSError:
            if not os.path.exists(folder):  # otherwise another process made it first
                raise
