"""Interpreters: describe the current layer to a rule of custom_function_call.

They subclass torch.func's interpreters, so that a rule written for torch.func works unchanged. Only
the parts that depend on the layer stack are overridden.
"""

from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from torchlayers import _C
from torchlayers.core.layer_stack import KINDS
from torchlayers.core.private_names import private_class
from torchlayers.core.torch_private import functorch

_GradInterpreter: Any = private_class("torch._functorch.pyfunctorch.GradInterpreter")
_JvpInterpreter: Any = private_class("torch._functorch.pyfunctorch.JvpInterpreter")
_VmapInterpreter: Any = private_class("torch._functorch.pyfunctorch.VmapInterpreter")
_FunctionalizeInterpreter: Any = private_class(
    "torch._functorch.pyfunctorch.FunctionalizeInterpreter"
)


class _LayerInterpreter:
    transform: Any

    def __init__(self, level: int) -> None:
        self._level = level

    def level(self) -> int:
        return self._level

    def key(self) -> Any:
        return self.transform

    def lower(self) -> AbstractContextManager[None]:
        self.__dict__.setdefault("_cdata", functorch.get_interpreter_stack()[-1])
        return _C.Below()

    def __getattr__(self, name: str) -> Any:
        if name != "_cdata":
            raise AttributeError(name)
        # Read by torch.func's methods: the layer's mirror on torch.func's stack. lower() saves it,
        # as the layer is no longer on top from then on.
        return functorch.get_interpreter_stack()[-1]


class Grad(_LayerInterpreter, _GradInterpreter):  # type: ignore[misc]
    transform = functorch.TransformType.Grad


class Jvp(_LayerInterpreter, _JvpInterpreter):  # type: ignore[misc]
    transform = functorch.TransformType.Jvp


class Vmap(_LayerInterpreter, _VmapInterpreter):  # type: ignore[misc]
    transform = functorch.TransformType.Vmap


class Functionalize(_LayerInterpreter, _FunctionalizeInterpreter):  # type: ignore[misc]
    transform = functorch.TransformType.Functionalize


Interpreter: TypeAlias = Grad | Jvp | Vmap | Functionalize
# A layer of random numbers (the last two) is like a vmap under which no tensor is batched.
_OF_KINDS: tuple[type[Interpreter], ...] = (Grad, Jvp, Vmap, Functionalize, Vmap, Vmap)
INTERPRETERS = dict(zip(KINDS, _OF_KINDS, strict=True))
