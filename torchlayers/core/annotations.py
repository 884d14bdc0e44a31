"""Types in the signatures of transforms, for type checkers: nothing here is used at run time."""

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from typing_extensions import TypeVarTuple

__all__ = [
    "A",
    "Aux",
    "B",
    "C",
    "Ins",
    "P",
    "Pullback",
    "Q",
    "R",
    "Randomness",
    "T",
    "Transformed",
]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
# What a function returns beside its output, with has_aux.
Aux = TypeVar("Aux")
# The arguments of a function that takes positional arguments alone.
Ins = TypeVarTuple("Ins")
# The first three arguments of a function. The bound makes the parameters of a lambda Any: without
# it pyright takes them for plain objects, and refuses lambda x: x.sum().
A = TypeVar("A", bound=Any)
B = TypeVar("B", bound=Any)
C = TypeVar("C", bound=Any)

R_co = TypeVar("R_co", covariant=True)
Cotangents_contra = TypeVar("Cotangents_contra", contravariant=True)

Randomness: TypeAlias = Literal["error", "same", "different", "keyed"]


class Transformed(Protocol[P, R_co]):
    """A transformed function: called like the original, which it has as ``__wrapped__``.

    In the last overloads of a transform, it also keeps mypy from merging them with those before
    that return a Callable, which makes calls of a transformed lambda untyped calls.
    """

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Pullback(Protocol[Cotangents_contra, R_co]):
    """The function of :func:`torchlayers.vjp` from cotangents to those of the primals."""

    def __call__(
        self,
        cotangents: Cotangents_contra,
        retain_graph: bool | None = True,
        create_graph: bool | None = None,
    ) -> R_co: ...
