"""Finds the names that Python code loads and stores: globals, attributes, outer variables."""

import dis
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD")
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL")
# Functions that read or write attributes whose names are values.
_BY_NAME = frozenset(("getattr", "hasattr", "setattr", "delattr", "attrgetter"))
_ALL_ATTRIBUTES = frozenset(("vars", "__dict__", "__getattribute__", "__setattr__", "dir"))


class NameAccesses(NamedTuple):
    """Names in a code object, and in the functions that are defined in it."""

    globals: frozenset[str]
    attributes: frozenset[str]
    stored: frozenset[str]
    asked: frozenset[str]  # attributes that may be missing
    any_attribute: bool  # it computes names of attributes
    any_stored: bool
    imported: frozenset[str]  # modules that it imports when it runs


@lru_cache(4096)
def name_accesses(code: types.CodeType) -> NameAccesses:
    """Returns the names that a code object, and those nested in it, may read and write."""
    names = {name: set[str]() for name in ("globals", "attributes", "stored", "asked")}
    imported = set()
    any_attribute = False
    instructions = [*dis.get_instructions(code)]
    for i, instruction in enumerate(instructions):
        name = instruction.argval
        if instruction.opname in _LOADS_GLOBAL:
            names["globals"].add(name)
            if name in _BY_NAME:
                constant = _constant_after(instructions, i)
                any_attribute = any_attribute or constant is None
                names["attributes"].add(constant or "")
                names["asked"].add(constant or "")
                if name in ("setattr", "delattr"):
                    names["stored"].add(constant or "")
            any_attribute = any_attribute or name in _ALL_ATTRIBUTES
        elif instruction.opname.startswith(_LOADS_ATTRIBUTE) or instruction.opname == "IMPORT_FROM":
            names["attributes"].add(name)
            any_attribute = any_attribute or name in _ALL_ATTRIBUTES
        elif instruction.opname in _STORES:
            names["stored"].add(name)
        elif instruction.opname == "IMPORT_NAME":
            imported.add(name)
    if "AttributeError" in names["globals"]:  # the code may catch it
        names["asked"] |= names["attributes"]
    every = [name_accesses(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)]
    any_stored = any_attribute and ("" in names["stored"] or "__dict__" in names["attributes"])
    return NameAccesses(
        frozenset(names["globals"]).union(*(inner.globals for inner in every)),
        (frozenset(names["attributes"]) - {""}).union(*(inner.attributes for inner in every)),
        (frozenset(names["stored"]) - {""}).union(*(inner.stored for inner in every)),
        (frozenset(names["asked"]) - {""}).union(*(inner.asked for inner in every)),
        any_attribute or any(inner.any_attribute for inner in every),
        any_stored or any(inner.any_stored for inner in every),
        frozenset(imported).union(*(inner.imported for inner in every)),
    )


@lru_cache(4096)
def may_catch(code: types.CodeType) -> bool:
    """Whether a code object has an ``except`` clause for some class of errors."""
    return any("EXC_MATCH" in instruction.opname for instruction in dis.get_instructions(code))


def _constant_after(instructions: list[dis.Instruction], start: int) -> str | None:
    """Returns the attribute name that a call of getattr has as a literal, or None."""
    for instruction in instructions[start + 1 : start + 12]:
        if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str):
            return instruction.argval
        if instruction.opname.startswith(("CALL", "STORE", "BINARY_OP", "FORMAT", "RETURN")):
            return None
    return None


def merge_accesses(codes: Iterable[types.CodeType]) -> NameAccesses:
    """Returns the names that any of these code objects reads and writes."""
    every = [name_accesses(code) for code in codes]
    none: frozenset[str] = frozenset()
    return NameAccesses(
        none.union(*(inner.globals for inner in every)),
        none.union(*(inner.attributes for inner in every)),
        none.union(*(inner.stored for inner in every)),
        none.union(*(inner.asked for inner in every)),
        any(inner.any_attribute for inner in every),
        any(inner.any_stored for inner in every),
        none.union(*(inner.imported for inner in every)),
    )


def code_of_attribute(function: Any) -> Iterator[types.CodeType]:
    """Yields the code of a class attribute: a function, a property, a static or a class method."""
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = getattr(function, name, None)
        if isinstance(inner, types.FunctionType):
            yield inner.__code__
    if isinstance(function, types.FunctionType):
        yield function.__code__


def _folder(file: str | None) -> str:
    return os.path.dirname(os.path.abspath(file or "")) + os.sep


_TORCH = _folder(torch.__file__)
_TORCHLAYERS = _folder(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Their code does the same at each call: it reads only its arguments and its own settings.
_LIBRARIES = (_TORCH, _TORCHLAYERS, "<frozen")
_STANDARD = tuple(
    os.path.abspath(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
# NumPy, and the packages that torch itself calls.
_TORCH_DEPENDENCIES = (
    "numpy",
    "typing_extensions",
    "sympy",
    "mpmath",
    "networkx",
    "optree",
    "torchgen",
    "triton",
)
_TORCH_DEPENDENCY_FILE = re.compile(rf".*-packages[/\\\\]({'|'.join(_TORCH_DEPENDENCIES)})\b")
# The parts of torch that trace graphs, or run functions on fake tensors.
_CAPTURE_FOLDERS = tuple(
    _TORCH + name + os.sep
    for name in ("fx", "_subclasses", "_dynamo", "_inductor", "_functorch", "_prims", "_refs")
)


@lru_cache(4096)
def is_library_file(name: str) -> bool:
    """Whether a source file is Python's, torch's, NumPy's or torchlayers'."""
    if name.startswith(_LIBRARIES) or _TORCH_DEPENDENCY_FILE.match(name):
        return True
    return name.startswith(_STANDARD) and "-packages" not in name  # third-party packages


def is_own_or_torchs(code: types.CodeType) -> bool:
    """Whether code is torch's or torchlayers', or imports a module."""
    return code.co_filename.startswith((_TORCH, _TORCHLAYERS, "<frozen importlib"))


def is_user_code(code: types.CodeType) -> bool:
    return not is_library_file(code.co_filename)


def keep_user_code(
    ran: Iterable[tuple[types.CodeType, dict[str, Any]]],
) -> list[tuple[types.CodeType, dict[str, Any]]]:
    """Filters pairs of code and globals for user code.

    Code that namedtuple and dataclass generate has no file, so the module's name is checked too.
    """
    return [
        (code, variables)
        for code, variables in ran
        if is_user_code(code) and not is_library(str(variables.get("__name__", "")))
    ]


def is_capture_code(code: types.CodeType) -> bool:
    """Whether code is part of the capture machinery."""
    return code.co_filename.startswith((*_CAPTURE_FOLDERS, _TORCHLAYERS))


def is_library(module_name: str) -> bool:
    """Whether a module of this name is Python's, torch's, NumPy's or torchlayers'."""
    return module_name.partition(".")[0] in _ROOTS or module_name.startswith("namedtuple_")


_ROOTS = {
    *sys.stdlib_module_names,
    *sys.builtin_module_names,
    "torch",
    "torchlayers",
    *_TORCH_DEPENDENCIES,
}
