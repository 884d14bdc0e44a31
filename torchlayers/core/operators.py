"""torch's operators by namespace, where one that this torch lacks is a placeholder.

Operators come and go with versions of torch, too. A rule for one that is gone, or a pass that looks
for it, must not keep the others from working: ``aten.cholesky`` is then a MissingOperator, which no
operator equals, and so is ``aten.sum.some_overload`` where the operator has no such overload.
Tables may have it as a key; ``present`` drops it where that is not enough.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from torchlayers.core.errors import TorchVersionError
from torchlayers.core.private_names import WITHOUT, explain

__all__ = ["MissingOperator", "aten", "c10d_functional", "higher_order", "present"]


class MissingOperator:
    """An operator, or an overload, that this torch lacks; calling it raises a TorchVersionError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> "MissingOperator":
        if name.startswith("_"):
            raise AttributeError(name)
        return MissingOperator(f"{self._path}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise TorchVersionError(explain(self._path))

    def __repr__(self) -> str:
        return f"<missing {self._path}>"


_OverloadPacket: Any = type(torch.ops.aten.sin)


class _Packet(_OverloadPacket):  # type: ignore[misc]
    """torch's packet of an operator's overloads, which it equals; a missing one is a placeholder.

    An overload is read from torch's packet once, and is then an attribute.
    """

    def __init__(self, packet: Any, path: str) -> None:
        self.__dict__.update(_packet=packet, _path=path, __name__=packet.__name__)
        self.__module__ = packet.__module__

    def __getattr__(self, name: str) -> Any:
        packet, path = self.__dict__["_packet"], f"{self.__dict__['_path']}.{name}"
        value = MissingOperator(path) if path in WITHOUT else getattr(packet, name, None)
        if value is None:
            if name.startswith("_"):
                raise AttributeError(name)
            return MissingOperator(path)
        self.__dict__[name] = value
        return value

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._packet

    def __hash__(self) -> int:
        return hash(self._packet)


def present(operators: Iterable[Any]) -> list[Any]:
    """The operators without those that this torch lacks."""
    return [op for op in operators if not isinstance(op, MissingOperator)]


def _namespace(name: str) -> Any:
    path = f"torch.ops.{name}"
    namespace = ModuleType(path)

    def find(packet: str) -> Any:
        if packet.startswith("__") and packet.endswith("__") and packet[2:-2] not in _DUNDER:
            raise AttributeError(packet)
        operator = getattr(getattr(torch.ops, name), packet, None)
        if operator is None or f"{path}.{packet}" in WITHOUT:
            return MissingOperator(f"{path}.{packet}")  # some are registered later
        if isinstance(operator, _OverloadPacket):
            operator = _Packet(operator, f"{path}.{packet}")
        setattr(namespace, packet, operator)
        return operator

    vars(namespace)["__getattr__"] = find
    return namespace


# Operators that are named like methods of Python.
_DUNDER = ("and", "iand", "ior", "ixor", "ilshift", "irshift", "lshift", "or", "rshift", "xor")

aten = _namespace("aten")
c10d_functional = _namespace("_c10d_functional")
higher_order = _namespace("higher_order")
