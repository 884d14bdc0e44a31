"""Interpreters: describe the current layer to a rule of custom_function_call.

They subclass torch.func's interpreters, so that a rule written for torch.func works unchanged. Only
the parts that depend on the layer stack are overridden.
"""

from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch._C._functorch import TransformType
from torch._functorch import pyfunctorch

from torchlayers import _C
from torchlayers.core.layer_stack import KINDS

_functorch: Any = torch._C._functorch


class _LayerInterpreter:
    transform: TransformType

    def __init__(self, level: int) -> None:
        self._level = level

    def level(self) -> int:
        return self._level

    def key(self) -> TransformType:
        return self.transform

    def lower(self) -> AbstractContextManager[None]:
        self.__dict__.setdefault("_cdata", _functorch.peek_interpreter_stack())
        return _C.Below()

    def __getattr__(self, name: str) -> Any:
        if name != "_cdata":
            raise AttributeError(name)
        # Read by torch.func's methods: the layer's mirror on torch.func's stack. lower() saves it,
        # as the layer is no longer on top from then on.
        return _functorch.peek_interpreter_stack()


class Grad(_LayerInterpreter, pyfunctorch.GradInterpreter):
    transform = TransformType.Grad


class Jvp(_LayerInterpreter, pyfunctorch.JvpInterpreter):
    transform = TransformType.Jvp


class Vmap(_LayerInterpreter, pyfunctorch.VmapInterpreter):
    transform = TransformType.Vmap


class Functionalize(_LayerInterpreter, pyfunctorch.FunctionalizeInterpreter):
    transform = TransformType.Functionalize


Interpreter: TypeAlias = Grad | Jvp | Vmap | Functionalize
# A layer of random numbers (the last two) is like a vmap under which no tensor is batched.
_OF_KINDS: tuple[type[Interpreter], ...] = (Grad, Jvp, Vmap, Functionalize, Vmap, Vmap)
INTERPRETERS = dict(zip(KINDS, _OF_KINDS, strict=True))
