"""Values that stand for others as well, so that control flow on them has to cover every path.

Sparsity detection (transforms/sparse/detection) runs a function at one input, for a pattern that
holds at all. It answers these questions about its tensors; control flow asks them.
"""

from collections.abc import Hashable
from typing import Protocol

from torch import Tensor


class Observer(Protocol):
    """Answers for the tensors of one kind of layer."""

    def varies(self, x: Tensor) -> bool:
        """Whether x has other values in other runs that the result is to hold for."""

    def dependence(self, x: Tensor) -> Hashable:
        """What x depends on, to be compared with ==."""

    def note_dense(self, x: Tensor, name: str) -> None:
        """Notes that the results of an operation on x are taken to depend on all its operands."""


_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    _observers.append(observer)


def varies(x: Tensor) -> bool:
    return any(observer.varies(x) for observer in _observers)


def dependence(x: Tensor) -> Hashable:
    return tuple(observer.dependence(x) for observer in _observers)


def note_dense(x: Tensor, name: str) -> None:
    for observer in _observers:
        observer.note_dense(x, name)
