"""Finds what a function wrote to Python in one capture, and undoes it.

NOTE [What is written to Python] is in python_writes.py.
"""

import collections
import contextlib
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.capture.draws import Draws, NumpyGenerator, draws_traced, is_of_numpy
from torchlayers.compiler.capture.errors import NotWritableError
from torchlayers.compiler.capture.optimizers import rates_of
from torchlayers.compiler.capture.state.cached_functions import CachedStandIn
from torchlayers.compiler.capture.state.changed_names import ChangedNames, RanCode, last_name
from torchlayers.compiler.capture.state.container_uses import is_only_added_to
from torchlayers.compiler.capture.state.growing_containers import growing
from torchlayers.compiler.capture.state.iterators import IteratorStandIn, taken_from
from torchlayers.compiler.capture.state.numpy_arrays import ArrayStandIn, ArrayWrite
from torchlayers.compiler.capture.state.opaque_state import OpaqueState
from torchlayers.compiler.capture.state.python_state import PythonState
from torchlayers.compiler.capture.state.python_writes import OpaqueWrite, PythonWrite, PythonWrites
from torchlayers.compiler.capture.state.recipes import NotRepeatableError, Recipe, RecipeWriter
from torchlayers.compiler.capture.state.state_holders import HolderSnapshot, Slots, StatePlace
from torchlayers.compiler.capture.state.structures import shapes_in, structure_of
from torchlayers.compiler.capture.values.traced_numbers import plain_number
from torchlayers.compiler.capture.values.traced_state import TracedNumbers

_STATE_READS = {"getstate", "get_state", "bit_generator"}  # of a random generator
_ADDED_TO = (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


class WrittenState:
    """Finds what a function wrote to Python in one capture, and undoes it.

    Args:
        func: the function.
        arguments: its arguments.
        ran: the code that has run, with its globals, as it grows. Without it, only stored tensors
            are found.
    """

    def __init__(self, func: Callable[..., Any], arguments: Sequence[Any], ran: RanCode) -> None:
        self._state = PythonState(func, arguments)
        self._ran = ran
        self.numbers: TracedNumbers | None = None
        self.floats: Collection[int] = ()  # the ids of the traced floats that are stored
        self._untraced: list[tuple[StatePlace, Any]] = []
        self._traced: list[Any] = []  # what is put into these places for the capture
        self._arrays: list[tuple[OpaqueState, ArrayStandIn]] = []
        self._iterators: dict[int, list[IteratorStandIn]] = {}  # by the id of the iterator
        self._growing: list[Any] = []  # stand-ins of containers

    def start(self, symbolic: Sequence[tuple[StatePlace, Any]], *, traces_rates: bool) -> None:
        """Notes until the capture is undone what it takes from iterators, for the call itself.

        Args:
            symbolic: integers that stand in places meanwhile.
            traces_rates: trace the learning rates of optimizers.
        """
        rates = rates_of(self._state.optimizers) if traces_rates else []
        if rates:
            self.trace(rates, False, symbolic)
        else:
            self._replace([*symbolic, *self._stand_ins(None)])

    def trace(
        self,
        places: Sequence[StatePlace],
        draws: bool,
        symbolic: Sequence[tuple[StatePlace, Any]],
        containers: Collection[int] = (),
    ) -> None:
        """Traces the numbers in these places until the capture is undone, and those drawn.

        Args:
            containers: the ids of lists, deques and dicts to which the function may only add.
        """
        states = [state for state, _ in (*self._state.random, *self._state.opaque)]
        rates = rates_of(self._state.optimizers)
        places = [*{each.identity: each for each in (*rates, *places)}.values()]
        is_random = [each for each in states if each.thing is not None and not each.is_iterator]
        self.numbers = TracedNumbers(places, is_random if draws else ())
        stand_ins = [*self._stand_ins(self.numbers.draws if draws else None)]
        holders = {id(each.holder): each for each in self._state.holders}
        for container in containers & holders.keys():
            self._growing.append(growing(holders[container], self.numbers.draws.read))
            at = self._places_of(holders[container].holder)
            stand_ins += [(place, self._growing[-1]) for place in at]
        self._replace([*symbolic, *zip(places, self.numbers.proxies, strict=True), *stand_ins])

    def _replace(self, values: Sequence[tuple[StatePlace, Any]]) -> None:
        """Puts values into places until the capture is undone."""
        whole = [place._replace(path=()) for place, _ in values]
        self._untraced = [(place, place.read()) for place in whole]
        for place, value in values:
            place.put(value)
        self._traced = [place.read() for place in whole]
        self._remember(self._traced)

    def _stand_ins(self, draws: Draws | None) -> Iterator[tuple[StatePlace, Any]]:
        """Yields what stands for iterators, caches and NumPy's generators, with the places."""
        for cache in self._state.caches:
            cached = CachedStandIn(cache, self._state.holders)
            yield from ((place, cached) for place in self._places_of(cache))
            static = staticmethod(cached)
            for method in self._state.static_methods_of(cache):
                yield from ((place, static) for place in self._places_of(method))
        for state, _ in self._state.opaque:
            places = [*self._places_of(state.thing)]
            if draws is not None and state.array is not None:
                places = [*self._places_of(state.array)]
                stand_in: Any = ArrayStandIn(state.array, draws.read)
                self._arrays.append((state, stand_in))
            elif state.is_iterator:
                taken = taken_from(state.thing, places)
                stand_in = IteratorStandIn(taken)
                if draws is not None:
                    stand_in = draws.stand_in(state, taken)
                self._iterators.setdefault(id(state.thing), []).append(stand_in)
            elif draws is not None and is_of_numpy(state.thing):
                stand_in = NumpyGenerator(state.thing, draws)
            else:
                continue
            yield from ((place, stand_in) for place in places)

    @property
    def any_array(self) -> bool:
        """Whether there are stand-ins of NumPy's arrays."""
        return bool(self._arrays)

    def modules(self) -> list[dict[str, Any]]:
        """Returns the globals of the functions and optimizers that can be reached."""
        modules = [holder.holder for holder in self._state.holders if holder.name == ""]
        kinds = {type(optimizer) for optimizer in self._state.optimizers}
        return modules + [vars(sys.modules[kind.__module__]) for kind in kinds]

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
        writes: dict[tuple[Any, Any], PythonWrite | OpaqueWrite] = {}
        code = ChangedNames(self._ran)
        for holder in self._state.holders:
            if not (keys := code.written(holder)):
                continue
            try:
                for write in self._writes_to(holder, keys, recipes, code):
                    writes[write.place] = write
            except NotRepeatableError:
                what = f"stores a tensor in {holder.path(keys[0])}"
                raise NotWritableError(what, "return the tensor instead") from None
        arrays = [
            ArrayWrite.of(state.name, stand_in, recipes)
            for state, stand_in in self._arrays
            if stand_in.written
        ]
        for each in self._growing:
            writes |= {write.place: write for write in each.writes(recipes)}
        drawn: set[int] = set()
        if self.numbers is not None:
            self.numbers.arrays = [state for state, stand_in in self._arrays if stand_in.is_used]
            self.numbers.find_generators(bool(code.loaded & _STATE_READS))
            generators = (*self.numbers.generators, *self.numbers.iterators)
            drawn = {id(state.thing) for state in generators}
        opaque = [
            write for write in self._opaque_writes(code) if id(write.state.thing) not in drawn
        ]
        self.floats = recipes.floats
        guarded = [(holder, code.unchanged(holder)) for holder in self._state.holders]
        guarded = [(holder, keys) for holder, keys in guarded if keys]
        guarded += [
            (write.holder, [write.key])
            for write in writes.values()
            if isinstance(write, PythonWrite) and code.is_of_library(write.holder, write.key)
        ]
        guarded += [(each.holder, each.guarded_keys) for each in self._growing if each.guarded_keys]
        return PythonWrites(
            [*arrays, *writes.values(), *opaque],
            frozenset(recipes.outputs),
            self.numbers,
            frozenset(recipes.existing),
            bool(opaque) or recipes.once,
            guarded=guarded,
            arrays=[stand_in.original for _, stand_in in self._arrays if stand_in.is_used],
            growing=self._growing,
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
            advanced = any(iterator.count for iterator in self._iterators.get(id(state.thing), ()))
            if code.any and ((after := state.get()) != before or advanced):
                yield OpaqueWrite(state, before, after)

    def _writes_to(
        self, holder: HolderSnapshot, keys: list[Any], recipes: RecipeWriter, code: "ChangedNames"
    ) -> Iterator[PythonWrite]:
        items, now, before = holder.holder, holder.now(), holder.before
        if not holder.is_container:
            for key in keys:
                recipe, name = _recipe(recipes, now, key), holder.path(key)
                structure, resizes = structure_of(now.get(key)), (key in now) != (key in before)
                reshapes = _reshapes(before.get(key), now.get(key))
                yield PythonWrite(
                    holder, key, "set", recipe, name, 0, False, resizes, structure, reshapes
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
            parts = [recipes.write(item) for item in [*now.values()][len(before) - dropped :]]
            if len(now) == getattr(items, "maxlen", None):
                dropped = 0  # by itself
            only_added = only_added and not dropped
            yield PythonWrite(holder, None, "extend", parts, name, dropped, only_added, resizes)
        elif len(now) == len(before) if is_sequence else _keeps_order(items, before):
            for key in keys:
                recipe = _recipe(recipes, now, key)
                only_set = only_added and isinstance(items, dict)
                resizes = len(now) != len(before)
                structure = structure_of(now.get(key))
                reshapes = _reshapes(before.get(key), now.get(key))
                plain = plain_number(key)
                yield PythonWrite(
                    holder, plain, "set", recipe, name, 0, only_set, resizes, structure, reshapes
                )
        else:
            pairs = [(recipes.write(key), recipes.write(value)) for key, value in now.items()]
            replaced: list[Any] = [*pairs]
            if not isinstance(items, dict):
                replaced = [value for _, value in pairs]
            yield PythonWrite(holder, None, "replace", replaced, name, resizes=resizes)


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
