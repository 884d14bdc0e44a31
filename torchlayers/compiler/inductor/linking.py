"""Kernels linked against empty libraries in place of torch's.

A linker reads all the names in a library, and torch's has hundreds of thousands: that takes as long
as compiling a small kernel. What a kernel uses of it, a vectorized sine, is looked up when it is
loaded, and then torch's library is in memory. To be found there it has to be named, no more.
"""

import functools
import os
import shutil
import subprocess
import tempfile
from typing import Any

import torch

_NEEDED = "libtorch_cpu.so"
# What else inductor has the linker read, for nothing that a kernel uses.
_ALSO_READ = ("libtorch.so", "libtorch_python.so")


def link_lightly(task: Any) -> None:
    """Changes how a file is linked that inductor is about to compile: what it would submit."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    flags = _flags(cache_dir())
    for builder in getattr(task, "args", [None, ()])[1]:
        if flags and hasattr(builder, "_ldflags_args"):
            builder._ldflags_args = f"{flags} {builder._ldflags_args}"


@functools.cache
def _flags(cache: str) -> str:
    """Nothing where the libraries are called otherwise, or the compiler refuses."""
    if not os.path.exists(os.path.join(os.path.dirname(torch.__file__), "lib", _NEEDED)):
        return ""
    folder = os.path.join(cache, "torchlayers", "named")
    try:
        if not os.path.exists(folder):
            _make(folder)
    except (OSError, subprocess.CalledProcessError):
        return ""
    quick = "-fuse-ld=gold " if shutil.which("ld.gold") else ""
    return f"{quick}-L{folder} -Wl,--no-as-needed"


def _make(folder: str) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler

    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as aside:
        made = os.path.join(aside, "made")
        os.mkdir(made)
        library = os.path.join(made, _NEEDED)
        named = ["-shared", "-nostdlib", f"-Wl,-soname,{_NEEDED}", "-o", library]
        command = [get_cpp_compiler(), *named, "-x", "c++", os.devnull]
        subprocess.run(command, check=True, capture_output=True)
        for name in _ALSO_READ:
            shutil.copy(library, os.path.join(made, name))
        try:
            os.rename(made, folder)
        except OSError:
            if not os.path.exists(folder):  # no other process was sooner
                raise
