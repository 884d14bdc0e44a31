"""What a captured function wrote to Python, which each call does again.

NOTE [What is written to Python]
A capture compares the state that the function can reach with that before it ran, undoes the
differences, and keeps them as a list of writes, which each call does after its graph has run. A
stored tensor is one more output of the graph; an object that was made inside is made again
(recipes.py). What a write replaces is not guarded but read at each call: tensors and the structure
around them (released_guards.py), and numbers (traced_numbers.py). What can't be done again makes
the graph good for one call, or is a NotWritableError: then the function runs uncompiled.
"""

import collections
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.state.changed_names import guard_of
from torchlayers.compiler.capture.state.guarded_place import GuardedPlace, is_constant
from torchlayers.compiler.capture.state.numpy_arrays import ArrayWrite
from torchlayers.compiler.capture.state.opaque_state import OpaqueState
from torchlayers.compiler.capture.state.recipes import (
    StoredValues,
    outputs_in,
)
from torchlayers.compiler.capture.state.state_holders import (
    ABSENT,
    ITEMS,
    HolderSnapshot,
    StatePlace,
    setter_of,
)
from torchlayers.compiler.capture.state.structures import walk
from torchlayers.compiler.capture.values.traced_numbers import Expression
from torchlayers.compiler.capture.values.traced_state import TracedNumbers


class PythonWrite(NamedTuple):
    """One place that a function wrote to.

    Attributes:
        holder: what holds it.
        key: of the item or attribute; None for a container as a whole.
        kind: ``"set"``; ``"extend"``: items are added at the end of a list or a deque, after
            ``dropped`` were taken from its start; ``"update"``: items of a dict are set;
            ``"replace"``: all items are others.
        recipes: the value, or the new items; of a dict, pairs. Empty for a value that is deleted.
        only_added: whether the function does nothing else with the container.
        resizes: whether the container then has another number of items, or others than tensors.
        structure: of a container or an object that is stored.
        reshapes: whether tensors of other shapes are stored than were there.
        found_at: where a call finds the holder, if calls replace what it is in.
    """

    holder: HolderSnapshot
    key: Any
    kind: str
    recipes: list[Any]
    name: str
    dropped: int = 0
    only_added: bool = False
    resizes: bool = True
    structure: Any = None
    reshapes: bool = False
    found_at: StatePlace | None = None

    @property
    def place(self) -> tuple[Any, Any]:
        return id(self.holder.holder), self.key

    @property
    def grows(self) -> Any:
        """The container that gets another number of items, or the place."""
        return (self.place[0], None) if self.resizes and self.holder.is_container else self.place

    @property
    def changes_length(self) -> bool:
        """Whether it is a list that gets another number of items, or others than tensors."""
        return self.resizes and isinstance(self.holder.holder, (list, collections.deque))

    @property
    def may_settle(self) -> bool:
        """Whether it may come back: a flag, an index of a ring, a phase, a cache."""
        if self.reshapes or (self.holder.is_container and self.resizes):
            return True
        recipes = [recipe[1] if isinstance(recipe, tuple) else recipe for recipe in self.recipes]
        return all(
            recipe.kind == "number" or (recipe.kind == "constant" and _is_state(recipe.value))
            for recipe in recipes
        )

    def forgetting(self) -> "PythonWrite":
        """Returns this without the values before it."""
        return self._replace(holder=self.holder.forgetting())

    def numbers_before(self, changed: set[int]) -> list[StatePlace]:
        """Returns the places of numbers that it replaces, by themselves or with what holds them.

        Args:
            changed: the ids of all holders that the function changes: none may be inside.
        """
        if self.kind != "set" or not self.recipes or self.key not in self.holder.before:
            return []
        parts = [*walk(self.holder.before[self.key], self.holder.place(self.key))]
        inside = {id(part) for _, part in parts}
        inside |= {id(vars(part)) for _, part in parts if hasattr(part, "__dict__")}
        if inside & changed:
            return []
        return [place for place, part in parts if type(part) in (int, float)]

    def writer(self) -> Callable[[StoredValues], None]:
        """Returns what each call does: for most writes, one assignment."""
        holder, key = self.holder.holder, self.key
        if self.found_at is not None:
            return self._write_where_found
        if self.kind != "set" or not self.recipes or not isinstance(holder, dict):
            return self._write
        (recipe,), set_item = self.recipes, setter_of(holder)

        def put(values: StoredValues) -> None:
            set_item(holder, key, values.make(recipe))

        return put

    def _write_where_found(self, values: StoredValues) -> None:
        assert self.found_at is not None
        thing = self.found_at.read()
        holder = thing if isinstance(thing, ITEMS) else vars(thing)
        self._replace(holder=self.holder._replace(holder=holder))._write(values)

    def _write(self, values: StoredValues) -> None:
        holder: Any = self.holder.holder
        if self.kind == "set":
            written = values.make(self.recipes[0]) if self.recipes else ABSENT
            self.holder.put(self.key, written)
        elif self.kind == "extend":
            for _ in range(self.dropped):
                del holder[0]
            holder.extend(map(values.make, self.recipes))
        elif isinstance(holder, dict):
            pairs = {values.make(key): values.make(value) for key, value in self.recipes}
            put = holder.update if self.kind == "update" else self.holder.put_items
            put(pairs)
        else:
            self.holder.put_items(dict(enumerate(map(values.make, self.recipes))))

    def outputs(self) -> Iterator[tuple[int, Tensor]]:
        """Yields what the place holds now of the tensors that are outputs of the graph."""
        now = self.holder.now()
        if self.kind == "set":
            stored = [now.get(self.key)]
        else:
            stored = [*now.values()][len(now) - len(self.recipes) :]
        for recipe, value in zip(self.recipes, stored, strict=False):
            yield from outputs_in(recipe[1] if isinstance(recipe, tuple) else recipe, value)


class OpaqueWrite(NamedTuple):
    """An iterator that advanced, a random generator or an array that changed."""

    state: OpaqueState
    before: Any
    after: Any
    may_settle: bool = False
    changes_length: bool = False

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def place(self) -> tuple[Any, Any]:
        return self.state.name, None

    @property
    def grows(self) -> Any:
        return self.place

    def forgetting(self) -> "OpaqueWrite":
        return self

    def writer(self) -> Callable[[StoredValues], None]:
        return lambda values: self.state.set(self.after)


AnyWrite = PythonWrite | OpaqueWrite | ArrayWrite


class PythonWrites(NamedTuple):
    """What a function wrote.

    Attributes:
        computed: the outputs of the graph that are stored.
        numbers: those that are read, and replaced, at each call.
        existing: the ids of objects that it stored and did not make.
        once: whether later calls can't write it again, so that the graph is good for one call.
        drawn: the inputs of the graph that each call computes from what it draws: the index, the
            expression, and the dtype.
        guarded: the places that it set to the values that they had, since from another value it
            would have been a change; and those that a library set, from what it read.
        arrays: of NumPy, whose elements it read or set.
        sizes: the places of integers that are symbolic, with the tensors that carry them.
        growing: the stand-ins of containers to which it only adds.
    """

    writes: Sequence[AnyWrite] = ()
    computed: frozenset[int] = frozenset()
    numbers: TracedNumbers | None = None
    existing: frozenset[int] = frozenset()
    once: bool = False
    drawn: Sequence[tuple[int, Expression, torch.dtype]] = ()
    guarded: Sequence[tuple[HolderSnapshot, list[Any]]] = ()
    arrays: Sequence[Any] = ()
    sizes: Sequence[tuple[StatePlace, Tensor]] = ()
    growing: Sequence[Any] = ()

    def __bool__(self) -> bool:
        return bool(self.writes) or bool(self.drawn_from)

    @property
    def drawn_from(self) -> Sequence[OpaqueState]:
        """The random generators and iterators from which each call draws."""
        numbers = self.numbers
        return [*numbers.generators, *numbers.iterators] if numbers is not None else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that it changes."""
        return tuple(write.name for write in (*self.writes, *self.drawn_from))

    def forgetting(self) -> "PythonWrites":
        """Returns the writes without the values before them, which nothing else may keep alive."""
        writes = [write.forgetting() for write in self.writes]
        return self._replace(writes=writes, guarded=(), growing=())

    def find_at(self, places: Mapping[int, StatePlace]) -> "PythonWrites":
        """Returns the writes with the places of holders, by id, that calls replace.

        The innermost are written to first: a later write may replace what they are in.
        """

        def steps(write: AnyWrite) -> int:
            at = getattr(write, "found_at", None)
            return len(at.path) + 1 if at is not None else 0

        located = [
            write._replace(found_at=places.get(id(write.holder.holder)))
            if isinstance(write, PythonWrite)
            else write
            for write in self.writes
        ]
        return self._replace(writes=sorted(located, key=steps, reverse=True))

    def guards(self) -> list[GuardedPlace]:
        """Returns the guards of ``guarded``, once the numbers there are no longer traced."""
        guards = [guard_of(holder, keys) for holder, keys in self.guarded]
        return [guard for guard in guards if guard is not None]

    def reader(self) -> Callable[[list[Tensor]], Sequence[Any]]:
        """Returns what each call does before its graph runs: it reads and draws numbers.

        What the graph computes with is put among its inputs.
        """
        numbers, drawn = self.numbers, self.drawn
        if numbers is None:
            return lambda tensors: ()
        if not (numbers.draws.performed or numbers.arrays):
            return lambda tensors: numbers.read()

        def read(tensors: list[Tensor]) -> Sequence[Any]:
            values = numbers.draw()
            for place, expression, dtype in drawn:
                tensors[place] = torch.tensor(expression.compute(values), dtype=dtype)
            return values

        return read

    def writer(self) -> Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Any]], None]:
        """Returns what each call does with the inputs and outputs of its graph, and the numbers."""
        writers = [write.writer() for write in self.writes]

        def write(
            tensors: Sequence[Tensor], computed: Sequence[Tensor], numbers: Sequence[Any]
        ) -> None:
            values = StoredValues(tensors, computed, numbers)
            for put in writers:
                put(values)

        return write

    def outputs(self) -> Iterator[tuple[int, Tensor]]:
        for write in self.writes:
            if not isinstance(write, OpaqueWrite):
                yield from write.outputs()


def _is_state(value: Any) -> bool:
    return is_constant(value) or isinstance(value, enum.Enum)
