"""Changes that a function makes to Python state during capture: a counter, a list, an attribute.

Python runs once for many calls. If the function sets an attribute or a variable that it does not
read to a number or the like, each call repeats that. Any other change makes the captured graph
valid for that call alone. Often the next call changes nothing, since an object was created at the
first call and stored. If the same place is changed again, the function runs uncompiled, with a
warning.
"""

import collections
import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torchlayers.compiler.capture.bytecode import (
    NameAccesses,
    is_capture_code,
    keep_user_code,
    merge_accesses,
)
from torchlayers.compiler.capture.guards import Guards
from torchlayers.compiler.capture.leaked_tensors import ABSENT, ReachableState
from torchlayers.compiler.capture.opaque_state import OpaqueState, all_random_state
from torchlayers.compiler.capture.reachable_state import GuardedPlace, is_constant
from torchlayers.core.torch_private import FakeTensor

_CONTAINERS = (list, dict, set, collections.deque)


class PythonMutation(NamedTuple):
    """One place that a function changed.

    Attributes:
        holder, key: the place; ``holder`` is a dict, a list, a set, a deque, a cell, a class or the
            state of an iterator, a random generator or an array.
        before, after: its values. For a whole container, whose key is None, all items by keys.
    """

    holder: Any
    key: Any
    before: Any
    after: Any
    name: str

    @property
    def place(self) -> tuple[Any, Any]:
        holder = self.name if isinstance(self.holder, OpaqueState) else id(self.holder)
        return holder, self.key

    def undo(self) -> None:
        self._set(self.before)

    def redo(self) -> None:
        self._set(self.after)

    def _set(self, value: Any) -> None:
        holder: Any = self.holder
        if isinstance(holder, types.CellType):
            holder.cell_contents = value
        elif isinstance(holder, OpaqueState):
            holder.set(value)
        elif self.key is None and isinstance(holder, _CONTAINERS):
            holder.clear()
            if isinstance(holder, dict):
                holder.update(value)
            elif isinstance(holder, set):
                holder.update(value.values())
            else:
                holder.extend(value.values())
        elif isinstance(holder, type):
            delattr(holder, self.key) if value is ABSENT else setattr(holder, self.key, value)
        elif value is ABSENT:
            holder.pop(self.key, None)
        else:
            holder[self.key] = value


class PythonSnapshot:
    """The Python state before a function is captured."""

    def __init__(self, surroundings: ReachableState) -> None:
        self._surroundings = surroundings
        self._random = [(each, each.get()) for each in all_random_state()]

    def stored(self, ran: Sequence[tuple[types.CodeType, dict[str, Any]]]) -> list[GuardedPlace]:
        """Returns the places that user code set to the value they had before.

        From another value it would have been a change.
        """
        names = merge_accesses(code for code, _ in keep_user_code(ran)).stored
        return [
            place
            for kept in self._surroundings.kept
            if (place := _stored_in(kept, names)) is not None
        ]

    def changes(self, ran: Sequence[tuple[types.CodeType, dict[str, Any]]]) -> list[PythonMutation]:
        """Returns the changes that the code that ran has made."""
        users = [code for code, _ in keep_user_code(ran)]
        every = merge_accesses(code for code, _ in ran if not is_capture_code(code))
        own = merge_accesses(users)
        variables = {name for code in users for name in (*code.co_freevars, *code.co_cellvars)}
        loaded = own.globals | own.attributes | variables
        found = [
            change
            for kept in self._surroundings.kept
            for change in _changes_in(kept, every, loaded, own.any_stored)
        ]
        seen = [pair for pair in self._surroundings.opaque if _last_name(pair[0].name) in loaded]
        for state, before in (*self._random, *seen):
            after = state.get()
            if before != after:
                found.append(PythonMutation(state, None, before, after, state.name))
        return found


def _last_name(path: str) -> str:
    """The name that code loads to reach a place: ``items`` of ``self.items[3]``."""
    return path.rpartition(".")[2].partition("[")[0]


def _changes_in(
    kept: Any, every: NameAccesses, loaded: frozenset[str], any_stored: bool
) -> list[PythonMutation]:
    now: dict[Any, Any] = kept.now()
    before: dict[Any, Any] = kept.before
    if len(now) == len(before) and all(
        key in before and before[key] is value for key, value in now.items()
    ):
        return []
    is_table = kept.name.endswith(".") or not kept.name
    is_container = not is_table and isinstance(kept.holder, _CONTAINERS)
    if is_container:
        is_same = len(now) == len(before) and all(
            key in before and _is_same(before[key], value) for key, value in now.items()
        )
        if is_same or _last_name(kept.name) not in loaded:
            return []
        return [PythonMutation(kept.holder, None, dict(before), dict(now), kept.name)]
    found = []
    for key in {**before, **now}:
        was, value = before.get(key, ABSENT), now.get(key, ABSENT)
        if _is_same(was, value) or isinstance(value, FakeTensor):
            continue
        if isinstance(kept.holder, types.CellType):
            is_written = kept.name in every.stored
        else:
            is_written = key in every.stored or any_stored
        if is_written and key != "_flat_weights":
            found.append(PythonMutation(kept.holder, key, was, value, kept.path(key)))
    return found


def _stored_in(kept: Any, names: frozenset[str]) -> GuardedPlace | None:
    if isinstance(kept.holder, types.CellType):
        held = kept.now() if kept.name in names else {}
        kind, name = "cell", f"variable {kept.name}"
    elif kept.name.endswith(".") or not kept.name:
        held = {key: value for key, value in kept.now().items() if key in names}
        kind, name = "class" if isinstance(kept.holder, type) else "items", f"{kept.name}{{}}"
    else:
        return None
    same = {key: value for key, value in held.items() if _is_same(kept.before.get(key), value)}
    if not same:
        return None
    keys = () if kind == "cell" else tuple(same)
    return GuardedPlace(kind, kept.holder, keys, tuple(same.values()), name, ("", ""))


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if before is ABSENT or now is ABSENT or type(before) is not type(now):
        return False
    return is_constant(before) and repr(before) == repr(now)


def undo(changes: Sequence[PythonMutation]) -> None:
    """Undoes the changes."""
    for change in changes:
        change.undo()


@contextlib.contextmanager
def undo_on_error(changes: list[PythonMutation]) -> Iterator[None]:
    """Undoes the changes, once, if an error, or Ctrl-C, comes before the captured call has run."""
    try:
        yield
    except BaseException:
        undo(changes)
        changes.clear()
        raise


def are_replayable(changes: Sequence[PythonMutation], guards: Guards) -> bool:
    """Whether later calls can repeat all changes: plain values, in places that are not read."""
    read = {
        (id(place.holder), key) for place in guards.places for key in (place.keys or (None, ""))
    }
    return all(
        is_constant(change.after) and change.place not in read and not _is_container(change)
        for change in changes
    )


def _is_container(change: PythonMutation) -> bool:
    return change.key is None and isinstance(change.holder, (*_CONTAINERS, OpaqueState))
