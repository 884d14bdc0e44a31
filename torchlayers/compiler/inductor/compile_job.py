"""A graph to be compiled in another process, with the settings that apply to it here."""

import functools
import hashlib
import io
import os
import pickle
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.backends import mkldnn as of_torch
from torch.fx import GraphModule

from torchlayers import _C
from torchlayers.compiler.inductor import cache_directory
from torchlayers.compiler.inductor.graph_description import (
    GraphDescription,
    NotDescribableError,
    describe_graph,
    devices_in,
)
from torchlayers.compiler.inductor.program_description import ProgramDescription
from torchlayers.core.device import CPU

mkldnn: Any = of_torch  # it has no type stubs


class CompileJob(NamedTuple):
    """The job of a compiling process.

    ``config`` holds the settings of torch._inductor.config that differ from their defaults.
    """

    graph: GraphDescription
    threads: int
    options: dict[str, Any]
    config: dict[str, Any]
    numerics: tuple[Any, ...]
    cache_directory: str

    def encoded(self) -> bytes:
        """Pickles the job; equal jobs give equal bytes.

        Raises:
            NotDescribableError: an option can't be pickled.
        """
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5)
        pickler.fast = True  # otherwise the bytes depend on which equal objects are identical
        try:
            pickler.dump(self)
        except Exception as error:  # whatever __reduce__ raises
            raise NotDescribableError(f"an option can't be pickled ({error})") from error
        return file.getvalue()


class Compiled(NamedTuple):
    """The job's result."""

    program: ProgramDescription


class Unsuited(NamedTuple):
    """The job can only be done in the process that captured the graph."""

    why: str


class Failed(NamedTuple):
    """Inductor's error: that there is no compiler or no cache directory, or its text."""

    error: str
    is_no_compiler: bool = False
    no_cache: str | None = None
    is_disk_full: bool = False


Reply = Compiled | Unsuited | Failed


def job_of(graph: GraphModule, threads: int, options: dict[str, Any] | None) -> CompileJob:
    """Describes the job of compiling the graph under the current settings.

    Raises:
        NotDescribableError: another process can't compile it.
    """
    described = describe_graph(graph)
    if devices_in(described) != {CPU.type}:
        raise NotDescribableError("it computes on a device")
    return CompileJob(
        described,
        threads,
        dict(options or {}),
        _changed_config(),
        numerics(),
        cache_directory.directory(),
    )


def _changed_config() -> dict[str, Any]:
    config: Any = sys.modules.get("torch._inductor.config")
    if config is None:
        return {}
    # A setting that was changed and changed back, as `config.patch` does, is the default again.
    # Deprecated ones, of torch 2.15, warn when they are read; others have taken their places.
    return {
        name: getattr(config, name)
        for name, entry in config._config.items()
        if entry.alias is None
        and not getattr(entry, "deprecated", False)
        and getattr(config, name) != entry.default
    }


def numerics() -> tuple[Any, ...]:
    """The settings of torch that Inductor's code depends on."""
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        mkldnn.enabled,
    )


def set_numerics(settings: tuple[Any, ...]) -> None:
    dtype, precision, deterministic, warn_only, with_mkldnn = settings
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    mkldnn.set_flags(with_mkldnn)


def key_of(encoded: bytes) -> str:
    """A name for the job's result on disk, which other versions and processors don't share."""
    here = (
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        platform.machine(),
        sys.version,
        *sorted(f"{name}={os.environ[name]}" for name in os.environ if _is_setting(name)),
        *_sources(),
    )
    return hashlib.sha256(b"\0".join([encoded, *(str(fact).encode() for fact in here)])).hexdigest()


def _is_setting(name: str) -> bool:
    is_torchs = name.startswith("_")  # an address that torch leaves to its own processes
    return "INDUCTOR" in name and name != "TORCHINDUCTOR_CACHE_DIR" and not is_torchs


@functools.cache
def _sources() -> list[str]:
    """The sizes and times of this package's files: code compiled by another version is not used."""
    root = Path(_C.__file__).parent
    files = [Path(_C.__file__), *root.glob("fx/*.py"), *root.glob("compiler/**/*.py")]
    stats = [(file, file.stat()) for file in sorted(files) if file.exists()]
    return [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]
