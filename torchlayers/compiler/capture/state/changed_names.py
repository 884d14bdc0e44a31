"""What the code that ran during a capture changed of the state that it can reach, by its names."""

import types
from collections.abc import Sequence
from typing import Any

from torchlayers.compiler.capture.bytecode import (
    NameAccesses,
    is_capture_code,
    keep_user_code,
    merge_accesses,
)
from torchlayers.compiler.capture.state.guarded_place import GuardedPlace, is_constant
from torchlayers.compiler.capture.state.state_holders import ABSENT, HolderSnapshot, holds_fake

_REMADE = ("_flat_weights",)  # a recurrent module rebuilds them from its parameters at each call
RanCode = Sequence[tuple[types.CodeType, dict[str, Any]]]


class ChangedNames:
    """The names that the code that has run reads and writes."""

    def __init__(self, ran: RanCode) -> None:
        self.users = [code for code, _ in keep_user_code(ran)]
        self.any = bool(ran)
        accesses = merge_accesses(self.users)
        self._own_stored = accesses.stored
        self._every: NameAccesses = merge_accesses(
            code for code, _ in ran if not is_capture_code(code)
        )
        variables = {name for code in self.users for name in (*code.co_freevars, *code.co_cellvars)}
        self.loaded = accesses.globals | accesses.attributes | variables
        self._every_loaded = self.loaded | self._every.globals | self._every.attributes
        self._any_stored = accesses.any_stored

    def changed(self, holder: HolderSnapshot) -> list[Any]:
        """Returns the keys of the values that the function changed, remade ones too."""
        now, before = holder.now(), holder.before
        keys = [
            key
            for key in holder.changed()
            if not _is_same(before.get(key, ABSENT), now.get(key, ABSENT))
        ]
        fake = [key for key in keys if holds_fake(now.get(key))]
        if holder.is_container:
            is_changed = keys or (isinstance(holder.holder, dict) and [*now] != [*before])
            is_loaded = last_name(holder.name) in self._every_loaded
            return ([*keys] or [None]) if fake or (is_changed and is_loaded) else []
        return [key for key in keys if key in fake or self._stores(holder, key)]

    def written(self, holder: HolderSnapshot) -> list[Any]:
        """Returns the keys of the values that calls have to write."""
        return [key for key in self.changed(holder) if key not in _REMADE]

    def is_of_library(self, holder: HolderSnapshot, key: Any) -> bool:
        """Whether a library makes a change, which may depend on more than user code reads."""
        if holder.is_container:
            return last_name(holder.name) not in self.loaded
        name = holder.name if isinstance(holder.holder, types.CellType) else key
        return name not in self._own_stored and not self._any_stored

    def _stores(self, holder: HolderSnapshot, key: Any) -> bool:
        if isinstance(holder.holder, types.CellType):
            return holder.name in self._every.stored
        return key in self._every.stored or self._any_stored

    def unchanged(self, holder: HolderSnapshot) -> list[Any]:
        """Returns the keys of the places that user code set to the value they had before."""
        now, is_cell = holder.now(), isinstance(holder.holder, types.CellType)
        if is_cell:
            stored = now if holder.name in self._own_stored else {}
        elif holder.is_container or not isinstance(holder.holder, (dict, type)):
            return []
        else:
            stored = {key: value for key, value in now.items() if key in self._own_stored}
        return [key for key, value in stored.items() if _is_same(holder.before.get(key), value)]


def guard_of(holder: HolderSnapshot, keys: list[Any]) -> GuardedPlace | None:
    """Returns the guard of what a holder had before the capture."""
    thing, before = holder.holder, holder.before
    if isinstance(thing, types.CellType):
        return GuardedPlace("cell", thing, (), (before[""],), f"variable {holder.name}", ("", ""))
    if isinstance(thing, (dict, type)) and None not in keys:
        values = tuple(before.get(key, ABSENT) for key in keys)
        kind = "class" if isinstance(thing, type) else "items"
        return GuardedPlace(kind, thing, tuple(keys), values, f"{holder.name}{{}}", ("", ""))
    if isinstance(thing, (dict, list)):
        kind, keys = ("list", []) if isinstance(thing, list) else ("whole", [*before])
        sizes = holder.name, "items"
        name = f"{holder.name}[{{!r}}]"
        return GuardedPlace(kind, thing, tuple(keys), tuple(before.values()), name, sizes)
    return None


def last_name(path: str) -> str:
    """The name that code loads to reach a place: ``items`` of ``self.items[3]``."""
    return path.rpartition(".")[2].partition("[")[0]


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if before is ABSENT or now is ABSENT or type(before) is not type(now):
        return False
    return is_constant(before) and is_constant(now) and repr(before) == repr(now)
