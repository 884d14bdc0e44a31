"""State of objects that keep it in no attribute: iterators, generators, NumPy arrays, files."""

import array
import contextvars
import functools
import gc
import io
import itertools
import operator
import pickle
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_MANY = 20_000  # elements of an array: a larger one is a data set
_MAX_DEPTH = 6  # iterators inside one another
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SHOW_STATE = (itertools.count, itertools.repeat)  # in their repr


class OpaqueState(NamedTuple):
    """Reads and writes the state of an object: ``get()`` returns a value to compare.

    Attributes:
        thing: the iterator, or the generator of random numbers; None for other objects.
        array: the array of NumPy, if it is one.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    thing: Any = None
    array: Any = None

    @property
    def is_iterator(self) -> bool:
        return is_iterator(self.thing)


def state_of(thing: Any, name: str) -> OpaqueState | None:
    """Returns the state of an iterator, a random generator or an array; None for other objects."""
    kind = type(thing)
    if isinstance(thing, random.Random) and kind.getstate is random.Random.getstate:
        return OpaqueState(name, thing.getstate, thing.setstate, thing)
    if is_iterator(thing):
        return OpaqueState(name, lambda: _progress(thing, 0), _ignore, thing)
    if isinstance(thing, io.IOBase) and not thing.closed and thing.seekable():
        return OpaqueState(name, thing.tell, thing.seek)
    if isinstance(thing, bytearray) and len(thing) <= _MANY:
        return OpaqueState(
            name, lambda: bytes(thing), functools.partial(thing.__setitem__, slice(None))
        )
    if isinstance(thing, array.array) and len(thing) <= _MANY:
        return OpaqueState(
            name,
            thing.tobytes,
            lambda values: operator.setitem(
                thing, slice(None), array.array(thing.typecode, values)
            ),
        )
    if isinstance(thing, contextvars.ContextVar) and isinstance(thing.get(None), _PLAIN):
        return OpaqueState(name, lambda: thing.get(None), thing.set)
    if kind.__module__.startswith("numpy"):
        return _of_numpy(thing, name)
    return None


def all_random_state() -> list[OpaqueState]:
    """Returns the states of the random generators of Python and NumPy that are global."""
    states = [OpaqueState("Python's random numbers", random.getstate, random.setstate, random)]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:

        def get() -> Any:
            name, words, *rest = numpy.get_state(legacy=True)
            return name, tuple(words.tolist()), *rest

        states.append(OpaqueState("NumPy's random numbers", get, numpy.set_state, numpy))
    return states


def _of_numpy(thing: Any, name: str) -> OpaqueState | None:
    numpy: Any = sys.modules["numpy"]
    if isinstance(thing, numpy.ndarray):
        if thing.size > _MANY or thing.dtype.hasobject or not thing.flags.writeable:
            return None
        dtype, shape = thing.dtype, thing.shape

        def put(values: bytes) -> None:
            thing[...] = numpy.frombuffer(values, dtype).reshape(shape)

        return OpaqueState(name, thing.tobytes, put, array=thing)
    if isinstance(thing, numpy.random.RandomState):
        return OpaqueState(
            name,
            lambda: pickle.dumps(thing.get_state(legacy=False)),
            lambda state: thing.set_state(pickle.loads(state)),
            thing,
        )
    bits = thing.bit_generator if isinstance(thing, numpy.random.Generator) else thing
    if not isinstance(bits, numpy.random.BitGenerator):
        return None
    return OpaqueState(
        name,
        lambda: pickle.dumps(bits.state),
        lambda state: setattr(bits, "state", pickle.loads(state)),
        thing,
    )


def _is_builtin_iterator(kind: type) -> bool:
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _is_data_iterator(kind: type) -> bool:
    """Whether it iterates over a DataLoader: torch's objects are not searched for attributes."""
    return kind.__module__.startswith("torch.utils.data.") and hasattr(kind, "__next__")


def _of_variables(names: Mapping[str, Any], depth: int) -> str:
    variables = {
        key: _progress(value, depth + 1)
        if is_iterator(value)
        else (value if isinstance(value, _PLAIN) else id(value))
        for key, value in names.items()
    }
    return repr(variables)


def _progress(iterator: Any, depth: int) -> Any:
    """Returns how far an iterator is, as far as it can be seen."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(iterator, types.GeneratorType):
        frame, inner = iterator.gi_frame, iterator.gi_yieldfrom
        if frame is None:  # it has ended
            return "ended"
        variables = _of_variables(frame.f_locals, depth)
        return frame.f_lasti, variables, _progress(inner, depth + 1) if inner else None
    if _is_data_iterator(type(iterator)):
        return _of_variables(vars(iterator), depth)
    shown = repr(iterator) if isinstance(iterator, _SHOW_STATE) else ""
    left = operator.length_hint(iterator, -1) if not shown else -1
    parts = gc.get_referents(iterator)
    # Those of zip are in a tuple.
    parts += [
        member for part in parts if type(part) is tuple and len(part) < _MANY for member in part
    ]
    return left, shown, tuple(_progress(part, depth + 1) for part in parts if is_iterator(part))


def is_iterator(value: Any) -> bool:
    kind = type(value)
    return kind is types.GeneratorType or _is_builtin_iterator(kind) or _is_data_iterator(kind)


def _ignore(_: Any) -> None:
    """An iterator can't be set back."""
