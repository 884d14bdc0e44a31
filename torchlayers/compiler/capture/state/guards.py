"""Guards: the Python state that a function read during capture, compared before each call.

NOTE [What is guarded]
A captured graph depends on the state of Python at the capture. What the function read of that state
is found from the code that ran: the names of globals and attributes that this code loads. From the
function, the globals, the arguments and the modules that were called, everything that such names
reach is followed, through closures, defaults, methods, containers, modules' tables and classes.
Numbers, strings and the like must be equal, everything else must be the same object; a name that is
absent must stay absent where it would shadow one that exists. Values are those before the function
ran: changes that it makes itself are handled in python_writes.py.

Code of Python itself, torch, NumPy and torchlayers is followed only into modules and distributions,
since it reads only its arguments. What an import runs is not followed: it runs once.
"""

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch.nn import Module

from torchlayers import _C
from torchlayers.compiler.capture.state.guarded_place import GuardedPlace, is_constant
from torchlayers.compiler.capture.state.reachable_state import TABLES, ReachabilityWalk
from torchlayers.compiler.capture.state.state_holders import ABSENT


class Guards:
    """The guards of one captured graph: the places that were read."""

    def __init__(self, places: Sequence[GuardedPlace]) -> None:
        self.places = places
        self.held = _C.Guards(*(place.for_cpp() for place in places))

    def names(self) -> tuple[str, ...]:
        """Returns the names of the guarded places, for messages."""
        return tuple(
            place.name.format(key)
            for place in self.places
            for key, value in zip(place.keys or ("",), place.values, strict=False)
            if value is not ABSENT and key not in TABLES
        )

    def failed(self) -> str:
        """Describes the first difference from the state at the capture; empty if there is none."""
        if (failure := self.held.failed()) is None:
            return ""
        index, at = failure
        place = self.places[index]
        return _difference(place, at)

    def changing(self) -> tuple[int, Any] | None:
        """Returns the place of the first difference if it is a changed number, else None."""
        if (failure := self.held.failed()) is None or failure[1] < 0:
            return None
        place = self.places[failure[0]]
        value = place.values[failure[1]]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return id(place.holder), place.keys[failure[1]] if place.keys else failure[1]


def _difference(place: GuardedPlace, at: int) -> str:
    if at < 0:
        whose, what = place.sizes
        return f"{whose} has {len(place.holder)} {what}, had {len(place.values)}"
    key = place.keys[at] if place.keys else at
    name = place.name.format(key)
    then, now = place.values[at], _now(place, at)
    if key == "training" and isinstance(now, bool):
        words = ("is not", "was") if then else ("is", "was not")
        return f"{place.sizes[0]} {words[0]} in training, and {words[1]}"
    if then is ABSENT:
        return f"{name} was added"
    if now is ABSENT:
        return f"{name} was removed"
    if is_constant(then) and is_constant(now):
        return f"{name} is {now!r:.60}, was {then!r:.60}"
    return f"{name} is a different object"


def _now(place: GuardedPlace, at: int) -> Any:
    holder = place.holder
    if place.kind in ("items", "whole"):
        return holder.get(place.keys[at], ABSENT)
    if place.kind == "class":
        return vars(holder).get(place.keys[at], ABSENT)
    if place.kind == "list":
        return holder[at]
    if place.kind == "cell":
        return holder.cell_contents
    return holder() if place.kind == "asked" else None


def find_guarded_places(
    func: Callable[..., Any],
    constants: Sequence[Any],
    called: Sequence[Module],
    ran: Sequence[tuple[types.CodeType, dict[str, Any]]],
    drawn: Collection[int] = (),
) -> list[GuardedPlace]:
    """Returns the places that a function has read during capture.

    Args:
        func: the function.
        constants: its arguments that are not tensors.
        called: the modules that it called.
        ran: the code that ran, with its globals.
        drawn: the ids of generators from which each call draws.
    """
    walk = ReachabilityWalk(ran, drawn)
    walk.globals()
    walk.go(func, "")
    for thing in (*constants, *called):
        walk.go(thing, type(thing).__name__)
    walk.unreached()
    if called:
        walk.add_hooks_of_all()
    return walk.places
