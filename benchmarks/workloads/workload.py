"""A workload: a program, the same written by hand, and the arguments for both."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.timing import Work

# Takes the modules of transforms and of operators, and returns the function that is timed.
Program = Callable[[ModuleType, ModuleType], Callable[..., Any]]
Parameters = list[Tensor]
Network = Callable[[ModuleType, Parameters, Tensor], Tensor]  # the first is that of operators


@dataclass(frozen=True)
class Workload:
    """A computation, and its size.

    Arguments are tensors and lists of them. They are passed at each call, so that no compiler can
    treat them as constants. Without a version by hand, ``by_hand`` is None. A specialist's maker
    takes no argument: it imports its package.
    """

    name: str
    size: str
    program: Program
    by_hand: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    specialists: dict[str, Callable[[], Work]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}, {self.size}"
