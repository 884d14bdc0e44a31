"""One workload: a program, the same by hand, and what to run both on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.timing import Work

# From transforms and operators: the function that is timed.
Program = Callable[[ModuleType, ModuleType], Callable[..., Any]]
Parameters = list[Tensor]


@dataclass(frozen=True)
class Workload:
    """What is computed, and how large it is.

    Arguments are tensors and lists of them. They are passed at each call, so that a compiler
    takes none of them for a constant. A specialist is made from nothing: it imports its package.
    """

    name: str
    size: str
    program: Program
    by_hand: Callable[..., Any]
    arguments: tuple[Any, ...]
    specialists: dict[str, Callable[[], Work]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}, {self.size}"
