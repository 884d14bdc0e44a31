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
import contextlib
import enum
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.changed_names import ChangedNames, RanCode, guard_of, last_name
from torchlayers.compiler.capture.container_uses import is_only_added_to
from torchlayers.compiler.capture.draws import Draws, NumpyGenerator, draws_traced, is_of_numpy
from torchlayers.compiler.capture.errors import NotWritableError
from torchlayers.compiler.capture.iterators import IteratorStandIn, taken_from
from torchlayers.compiler.capture.opaque_state import OpaqueState
from torchlayers.compiler.capture.python_state import ReachableState
from torchlayers.compiler.capture.reachable_state import GuardedPlace, is_constant
from torchlayers.compiler.capture.recipes import (
    NotRepeatableError,
    Recipe,
    RecipeWriter,
    StoredValues,
    outputs_in,
)
from torchlayers.compiler.capture.state_holders import (
    ABSENT,
    HolderSnapshot,
    Slots,
    StatePlace,
    setter_of,
)
from torchlayers.compiler.capture.structures import shapes_in, structure_of, walk
from torchlayers.compiler.capture.traced_numbers import Expression, TracedNumbers, plain_number

_STATE_READS = {"getstate", "get_state", "bit_generator"}  # of a random generator
_ADDED_TO = (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


class PythonWrite(NamedTuple):
    """One place that a function wrote to.

    Attributes:
        holder: what holds it.
        key: of the item or attribute; None for a container as a whole.
        kind: ``"set"``; ``"extend"``: items are added at the end of a list or a deque, after
            ``dropped`` were taken from its start; ``"replace"``: all items are others.
        recipes: the value, or the new items; of a dict, pairs. Empty for a value that is deleted.
        only_added: whether the function does nothing else with the container.
        resizes: whether the container then has another number of items, or others than tensors.
        structure: of a container or an object that is stored.
        reshapes: whether tensors of other shapes are stored than were there.
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

    @property
    def place(self) -> tuple[Any, Any]:
        return id(self.holder.holder), self.key

    @property
    def grows(self) -> Any:
        """The container that gets another number of items, or the place."""
        return (self.place[0], None) if self.resizes and self.holder.is_container else self.place

    @property
    def may_settle(self) -> bool:
        """Whether it may come back: a flag, an index of a ring, a phase, a cache."""
        if self.reshapes or (self.holder.is_container and self.resizes):
            return True
        made = [recipe[1] if isinstance(recipe, tuple) else recipe for recipe in self.recipes]
        return all(
            recipe.kind == "number" or (recipe.kind == "constant" and _is_state(recipe.value))
            for recipe in made
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
        if self.kind != "set" or not self.recipes or not isinstance(holder, dict):
            return self._write
        (recipe,), set_item = self.recipes, setter_of(holder)

        def put(values: StoredValues) -> None:
            set_item(holder, key, values.make(recipe))

        return put

    def _write(self, values: StoredValues) -> None:
        holder: Any = self.holder.holder
        if self.kind == "set":
            made = values.make(self.recipes[0]) if self.recipes else ABSENT
            self.holder.put(self.key, made)
        elif self.kind == "extend":
            for _ in range(self.dropped):
                holder.popleft()
            holder.extend(map(values.make, self.recipes))
        elif isinstance(holder, dict):
            pairs = [(values.make(key), values.make(value)) for key, value in self.recipes]
            self.holder.put_items(dict(pairs))
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
        sizes: the places of integers that are symbolic, with the tensors that carry them.
    """

    writes: Sequence[PythonWrite | OpaqueWrite] = ()
    computed: frozenset[int] = frozenset()
    numbers: TracedNumbers | None = None
    existing: frozenset[int] = frozenset()
    once: bool = False
    drawn: Sequence[tuple[int, Expression, torch.dtype]] = ()
    guarded: Sequence[tuple[HolderSnapshot, list[Any]]] = ()
    sizes: Sequence[tuple[StatePlace, Tensor]] = ()

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
        return tuple(each.name for each in (*self.writes, *self.drawn_from))

    def forgetting(self) -> "PythonWrites":
        """Returns the writes without the values before them, which nothing else may keep alive."""
        return self._replace(writes=[write.forgetting() for write in self.writes], guarded=())

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
        if not self.drawn_from:
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
            if isinstance(write, PythonWrite):
                yield from write.outputs()


class WrittenState:
    """Finds what a function wrote to Python in one capture, and undoes it.

    Args:
        func: the function.
        given: its arguments.
        ran: the code that has run, with its globals, as it grows. Without it, only stored tensors
            are found.
    """

    def __init__(self, func: Callable[..., Any], given: Sequence[Any], ran: RanCode) -> None:
        self._state = ReachableState(func, given)
        self._ran = ran
        self.numbers: TracedNumbers | None = None
        self.floats: Collection[int] = ()  # the ids of the traced floats that are stored
        self._untraced: list[tuple[StatePlace, Any]] = []
        self._traced: list[Any] = []  # what is put into these places for the capture
        self._iterators: dict[int, list[IteratorStandIn]] = {}  # by the id of the iterator

    def start(self, symbolic: Sequence[tuple[StatePlace, Any]]) -> None:
        """Notes until the capture is undone what it takes from iterators, for the call itself.

        Args:
            symbolic: integers that stand in places meanwhile.
        """
        self._replace([*symbolic, *self._stand_ins(None)])

    def trace(
        self,
        places: Sequence[StatePlace],
        draws: bool,
        symbolic: Sequence[tuple[StatePlace, Any]],
    ) -> None:
        """Traces the numbers in these places until the capture is undone, and those drawn."""
        states = [state for state, _ in (*self._state.random, *self._state.opaque)]
        is_random = [each for each in states if each.thing is not None and not each.is_iterator]
        self.numbers = TracedNumbers(places, is_random if draws else ())
        found = self._stand_ins(self.numbers.draws if draws else None)
        self._replace([*symbolic, *zip(places, self.numbers.proxies, strict=True), *found])

    def _replace(self, values: Sequence[tuple[StatePlace, Any]]) -> None:
        """Puts values into places until the capture is undone."""
        whole = [place._replace(path=()) for place, _ in values]
        self._untraced = [(place, place.read()) for place in whole]
        for place, value in values:
            place.put(value)
        self._traced = [place.read() for place in whole]
        self._remember(self._traced)

    def _stand_ins(self, draws: Draws | None) -> Iterator[tuple[StatePlace, Any]]:
        """Yields what stands for iterators, and for NumPy's generators, with the places."""
        for state, _ in self._state.opaque:
            places = [*self._places_of(state.thing)]
            if state.is_iterator:
                taken = taken_from(state.thing, places)
                stand_in: Any = IteratorStandIn(taken)
                if draws is not None:
                    stand_in = draws.stand_in(state, taken)
                self._iterators.setdefault(id(state.thing), []).append(stand_in)
            elif draws is not None and is_of_numpy(state.thing):
                stand_in = NumpyGenerator(state.thing, draws)
            else:
                continue
            yield from ((place, stand_in) for place in places)

    def draws_traced(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what user code draws is traced, if that is wanted."""
        draws = self.numbers.draws if self.numbers is not None else None
        return draws_traced(draws if draws is not None and draws.any_known else None)

    def _places_of(self, thing: Any) -> Iterator[StatePlace]:
        for holder in self._state.holders:
            if not isinstance(holder.holder, (set, Slots)):
                yield from (
                    holder.place(key) for key, value in holder.before.items() if value is thing
                )

    def _remember(self, values: Sequence[Any]) -> None:
        """Takes these for what was in the places of traced numbers before the capture."""
        for (place, _), value in zip(self._untraced, values, strict=True):
            for holder in self._state.holders:
                if holder.holder is place.holder and place.key in holder.before:
                    holder.before[place.key] = value

    def find(
        self, place: Callable[[Tensor], int | None], computed: Callable[[Any], int]
    ) -> PythonWrites:
        """Returns the writes; for ``place`` and ``computed`` see RecipeWriter.

        Raises:
            NotWritableError: a tensor was stored where calls can't store one.
        """
        recipes = RecipeWriter(self._state.existed, place, computed)
        found: dict[tuple[Any, Any], PythonWrite | OpaqueWrite] = {}
        code = ChangedNames(self._ran)
        for holder in self._state.holders:
            if not (keys := code.written(holder)):
                continue
            try:
                for write in self._writes_to(holder, keys, recipes, code):
                    found[write.place] = write
            except NotRepeatableError:
                what = f"stores a tensor in {holder.path(keys[0])}"
                raise NotWritableError(what, "return the tensor instead") from None
        drawn: set[int] = set()
        if self.numbers is not None:
            self.numbers.find_generators(bool(code.loaded & _STATE_READS))
            generators = (*self.numbers.generators, *self.numbers.iterators)
            drawn = {id(state.thing) for state in generators}
        opaque = [each for each in self._opaque_writes(code) if id(each.state.thing) not in drawn]
        self.floats = recipes.floats
        guarded = [(holder, code.unchanged(holder)) for holder in self._state.holders]
        guarded = [(holder, keys) for holder, keys in guarded if keys]
        guarded += [
            (write.holder, [write.key])
            for write in found.values()
            if isinstance(write, PythonWrite) and code.is_of_library(write.holder, write.key)
        ]
        return PythonWrites(
            [*found.values(), *opaque],
            frozenset(recipes.outputs),
            self.numbers,
            frozenset(recipes.existing),
            bool(opaque) or recipes.once,
            guarded=guarded,
        )

    def undo(self) -> None:
        """Makes the state what it was before the capture. An iterator can't be set back."""
        code = ChangedNames(self._ran)
        for write in self._opaque_writes(code):
            write.state.set(write.before)
        for holder in self._state.holders:
            if keys := code.changed(holder):
                holder.restore(keys)
        for (place, value), traced in zip(self._untraced, self._traced, strict=True):
            if place.read() is traced:
                place.put(value)
        self._remember([value for _, value in self._untraced])
        self._state.clear_caches()

    def _opaque_writes(self, code: "ChangedNames") -> Iterator[OpaqueWrite]:
        loaded = [pair for pair in self._state.opaque if last_name(pair[0].name) in code.loaded]
        for state, before in (*self._state.random, *loaded):
            advanced = any(each.count for each in self._iterators.get(id(state.thing), ()))
            if code.any and ((after := state.get()) != before or advanced):
                yield OpaqueWrite(state, before, after)

    def _writes_to(
        self, holder: HolderSnapshot, keys: list[Any], recipes: RecipeWriter, code: "ChangedNames"
    ) -> Iterator[PythonWrite]:
        items, now, before = holder.holder, holder.now(), holder.before
        if not holder.is_container:
            for key in keys:
                made, name = _recipe(recipes, now, key), holder.path(key)
                structure, resizes = structure_of(now.get(key)), (key in now) != (key in before)
                reshapes = _reshapes(before.get(key), now.get(key))
                yield PythonWrite(
                    holder, key, "set", made, name, 0, False, resizes, structure, reshapes
                )
            return
        names = self._state.names.get(id(items), ())
        is_sequence = isinstance(items, (list, collections.deque))
        only_added = type(items) in _ADDED_TO and is_only_added_to(
            code.users, names, is_dict=not is_sequence
        )
        are_tensors = all(isinstance(v, Tensor) for v in (*before.values(), *now.values()))
        resizes = len(now) != len(before) or not are_tensors
        name = holder.path(keys[0])
        if is_sequence and (dropped := _dropped(items, before)) is not None:
            parts = [recipes.write(each) for each in [*now.values()][len(before) - dropped :]]
            if len(now) == getattr(items, "maxlen", None):
                dropped = 0  # by itself
            only_added = only_added and not dropped
            yield PythonWrite(holder, None, "extend", parts, name, dropped, only_added, resizes)
        elif len(now) == len(before) if is_sequence else _keeps_order(items, before):
            for key in keys:
                made = _recipe(recipes, now, key)
                only_set = only_added and isinstance(items, dict)
                resizes = len(now) != len(before)
                structure = structure_of(now.get(key))
                reshapes = _reshapes(before.get(key), now.get(key))
                plain = plain_number(key)
                yield PythonWrite(
                    holder, plain, "set", made, name, 0, only_set, resizes, structure, reshapes
                )
        else:
            pairs = [(recipes.write(key), recipes.write(value)) for key, value in now.items()]
            replaced: list[Any] = [*pairs]
            if not isinstance(items, dict):
                replaced = [value for _, value in pairs]
            yield PythonWrite(holder, None, "replace", replaced, name, resizes=resizes)


def _is_state(value: Any) -> bool:
    return is_constant(value) or isinstance(value, enum.Enum)


def _recipe(recipes: RecipeWriter, now: dict[Any, Any], key: Any) -> list[Recipe]:
    """Returns the recipe of the value of a key; none if it was deleted."""
    return [recipes.write(now[key])] if key in now else []


def _reshapes(before: Any, now: Any) -> bool:
    """Whether the tensors that are stored replace as many of other shapes."""
    shapes, others = shapes_in(before), shapes_in(now)
    return len(shapes) == len(others) and not all(map(_may_be, shapes, others))


def _may_be(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether a shape, which may have symbols, is what was there before."""
    return len(before) == len(now) and all(
        isinstance(size, torch.SymInt) or size == other
        for size, other in zip(now, before, strict=True)
    )


def _keeps_order(items: Any, before: dict[Any, Any]) -> bool:
    """Whether a dict has its former keys, in their order, and then new ones."""
    return (
        isinstance(items, dict)
        and len(items) >= len(before)
        and all(map(operator.is_, before, items))
    )


def _dropped(holder: Any, before: dict[Any, Any]) -> int | None:
    """Returns how many items were taken from the start if others were only added at the end."""
    now, items = [*holder], [*before.values()]
    most = len(items) if isinstance(holder, collections.deque) else 0
    for dropped in range(min(most, len(items)) + 1):
        left = items[dropped:]
        if len(left) <= len(now) and all(map(operator.is_, left, now)):
            return dropped if len(left) < len(now) or dropped else None
    return None
