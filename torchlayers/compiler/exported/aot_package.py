"""Compiles exported programs with AOTInductor to packages, which also run in C++, and loads them.

Besides the code, a package contains a line of JSON: its torch version, the shapes of the arguments,
and how its tensors map to the function's arguments and result (signature.py).
"""

import hashlib
import json
import platform
from typing import Any

import torch
from torch.export import ExportedProgram

from torchlayers.compiler.exported.loaded_package import Package
from torchlayers.compiler.exported.signature import FunctionSignature
from torchlayers.compiler.inductor import cache_directory
from torchlayers.core.device import CPU
from torchlayers.core.errors import TransformError
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_versions import is_no_compiler

_KEY = "torchlayers"
_DIGEST = "torchlayers_sha256"  # of the value under the other key


def write(
    program: ExportedProgram,
    signature: FunctionSignature,
    path: str,
    options: dict[str, Any] | None,
) -> None:
    """See ExportedFunction.to_aot."""
    check_path(path)
    described = signature.to_json()
    settings = {
        "fallback_random": True,  # draw the same numbers as torch
        "aot_inductor.metadata": {_KEY: described, _DIGEST: _digest(described)},
        **(options or {}),
    }
    try:
        cache_directory.check_writable()
        with torch.no_grad():
            lookup("torch._inductor.aoti_compile_and_package")(
                program, package_path=path, inductor_configs=settings
            )
    except Exception as error:
        if (why := cache_directory.unusable_reason(error)) is not None:
            raise TransformError(
                f"torchlayers: save: {cache_directory.describe(why)}. Set TORCHINDUCTOR_CACHE_DIR "
                "to a directory that can be written to."
            ) from error
        if is_no_compiler(error):
            raise TransformError(
                "torchlayers: save: this machine has no C++ compiler, which AOTInductor needs."
            ) from error
        raise


def check_path(path: str) -> None:
    """Raises a TransformError unless the path ends in .pt2."""
    if not path.endswith(".pt2"):
        raise TransformError(f"torchlayers: save: the path must end in .pt2, got {path!r}.")


def _digest(described: str) -> str:
    return hashlib.sha256(described.encode()).hexdigest()


def read_package(path: str) -> Package:
    """Reads a package that :func:`write` wrote: see :func:`torchlayers.load`."""
    try:
        metadata = lookup("torch._C._aoti.AOTIModelPackageLoader").load_metadata_from_package(
            path, "model"
        )  # runs nothing
        described = json.loads(metadata[_KEY])
        made_for = described["torch"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers."
        ) from error
    if made_for != torch.__version__:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for torch {made_for}, and this is "
            f"{torch.__version__}. Save it again with this torch."
        )
    if metadata.get(_DIGEST) != _digest(metadata[_KEY]):
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its description of arguments and results "
            "differs from what was saved. Copy it or save it again."
        )
    _check_processor(path, metadata)
    try:
        loader = lookup("torch._C._aoti.AOTIModelPackageLoader")(path, "model", False, 1, -1)
    except RuntimeError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: the code in it can't be loaded "
            f"({str(error).partition(chr(10))[0]}). Copy it or save it again."
        ) from error
    return Package(described, loader)


def _check_processor(path: str, metadata: dict[str, str]) -> None:
    if metadata.get("AOTI_DEVICE_KEY") != CPU.type:
        return  # AOTInductor queries the driver
    here = {
        word
        for isa in lookup("torch._inductor.cpu_vec_isa.valid_vec_isa_list")()
        for word in str(isa).upper().split()
    }
    wanted = set(metadata.get("AOTI_CPU_ISA", "").upper().split())
    machine = metadata.get("AOTI_MACHINE")
    if machine != platform.machine() or not wanted <= here:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for {machine} with "
            f"{' '.join(sorted(wanted))}, and this processor is {platform.machine()} with "
            f"{' '.join(sorted(here))}. Save it again on a processor like this one."
        )
