"""What a program can see of torch's functions and classes, and the C pointers behind them.

``python -m tests.patches.snapshot`` runs torchlayers in every way of uses.py, and prints a JSON
object: after which of them torch is not what it was before the import, and how.
"""

import builtins
import copyreg
import ctypes
import importlib
import inspect
import json
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
import torch._higher_order_ops
import torch.distributed.tensor
import torch.export
import torch.fx.experimental.proxy_tensor
import torch.utils.checkpoint

WORD = ctypes.sizeof(ctypes.c_void_p)
# The fields of a PyTypeObject that say how its instances behave: those between tp_name and
# tp_vectorcall, without flags, caches, subclasses, weak references and versions.
BEHAVIOUR = sorted({*range(3, 44), 47, 49, 50} - {21})
MAPPING, MAPPING_SLOTS = 14, 3
VECTORCALL_OFFSET = 5 + 2  # tp_vectorcall_offset
DESCRIPTOR = 5  # the word after PyDescrObject, of methods, attributes and slots
WATCHED = (builtins, math, copyreg)

Snapshot = dict[str, Any]


def words(address: int, count: int) -> list[int]:
    return [*(ctypes.c_size_t * count).from_address(address)]


def slots_of(type_: type) -> tuple[int, ...]:
    fields = words(id(type_), max(BEHAVIOUR) + 1)
    mapping = words(fields[MAPPING], MAPPING_SLOTS) if fields[MAPPING] else ()
    return tuple(fields[i] for i in BEHAVIOUR) + tuple(mapping)


def pointers_of(value: Any) -> tuple[Any, ...]:
    """The identity of a value, and of the code that a call of it runs."""
    if isinstance(value, (classmethod, staticmethod)):
        return id(value), *pointers_of(value.__func__)
    if isinstance(value, types.FunctionType):
        offset = words(id(types.FunctionType), VECTORCALL_OFFSET + 1)[VECTORCALL_OFFSET]
        vectorcall = words(id(value) + offset, 1)[0]
        return id(value), id(value.__code__), id(value.__defaults__), vectorcall
    if isinstance(value, types.BuiltinFunctionType):
        return id(value), *words(words(id(value), 3)[2], 3)
    if isinstance(value, (types.MethodDescriptorType, types.ClassMethodDescriptorType)):
        return id(value), *words(words(id(value), DESCRIPTOR + 1)[DESCRIPTOR], 3)
    if isinstance(value, types.GetSetDescriptorType):
        return id(value), *words(words(id(value), DESCRIPTOR + 1)[DESCRIPTOR], 3)
    if isinstance(value, types.WrapperDescriptorType):
        return id(value), *words(id(value), DESCRIPTOR + 2)[DESCRIPTOR:]
    if type(value).__name__ == "instancemethod":  # pybind11's methods
        return id(value), *pointers_of(value.__func__)
    return (id(value),)


def is_watched(value: Any) -> bool:
    """Whether a program calls it; torch itself changes its counters, flags and caches."""
    return (
        callable(value)
        or isinstance(value, (classmethod, staticmethod, property))
        or (inspect.isdatadescriptor(value))
    )


def of_torch(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "functorch")


def subclasses(type_: type) -> Iterator[type]:
    yield type_
    for each in type_.__subclasses__():
        yield from subclasses(each)


def is_alias(type_: type) -> bool:
    """Whether it is torch.FloatTensor or the like, which has torch.Tensor's attributes."""
    return type(type_).__name__ == "tensortype"


def classes_of_torch() -> dict[int, type]:
    modules = [module for name, module in sys.modules.items() if of_torch(name)]
    found = {
        id(each): each
        for module in modules
        for each in [*vars(module).values()]
        if isinstance(each, type) and of_torch(each.__module__) and not is_alias(each)
    }
    for base in (torch._C.TensorBase, torch.nn.Module, torch.autograd.Function):
        found |= {id(each): each for each in subclasses(base)}
    return found


_alive: list[Any] = []  # what was seen, so that nothing else gets its address


def take() -> Snapshot:
    seen: Snapshot = {"sys.meta_path": tuple(map(id, sys.meta_path))}
    for name, module in [*sys.modules.items()]:
        if of_torch(name) or module in WATCHED:
            for key, value in [*vars(module).items()]:
                if is_watched(value):
                    _alive.append(value)
                    seen[f"{name}.{key}"] = pointers_of(value)
    for each in classes_of_torch().values():
        if "<locals>" in each.__qualname__:
            continue  # of a call, as each GraphModule has a class of its own; names are shared
        name = f"{each.__module__}.{each.__qualname__}"
        seen[f"{name} (class)"] = frozenset(vars(each))
        seen[f"{name} (slots)"] = slots_of(each)
        for key, value in [*vars(each).items()]:
            if is_watched(value):
                _alive.append(value)
                seen[f"{name}.{key}"] = pointers_of(value)
    return seen


def changes(before: Snapshot) -> list[str]:
    now = take()
    return sorted(name for name, value in before.items() if now.get(name, value) != value)


def _failed(use: Any) -> bool:
    try:
        use()
    except ZeroDivisionError:
        return True
    return False


def in_a_layer(before: Snapshot) -> list[str]:
    tl: Any = importlib.import_module("torchlayers")
    seen: list[str] = []
    tl.vmap(lambda _: seen.extend(changes(before)) or torch.zeros(()))(torch.zeros(2))
    return seen


def run() -> dict[str, Any]:
    torch.compile(torch.sin, backend="eager")(torch.zeros(2))  # its first call changes torch
    before = take()
    uses: Any = importlib.import_module("tests.patches.uses")
    after = {"import": changes(before)}
    for call in uses.TRANSFORMS.values():
        call(uses.total)
    after["transforms"] = changes(before)
    for name, call in uses.TRANSFORMS.items():
        assert _failed(lambda call=call: call(uses.fails)), name
    after["exceptions"] = changes(before)
    for call in uses.FUNCTIONS.values():
        call()
    after["other functions"] = changes(before)
    return {"in a layer": in_a_layer(before), "after": after}


if __name__ == "__main__":
    json.dump(run(), sys.stdout)
