"""Random numbers of Python and NumPy that a function draws, and numbers that iterators give it.

A function that draws is captured once more, with traced numbers for what its own code draws. A call
draws before its graph runs, in the same order. If drawing again from the state before the capture
does not lead to the state after it, something else has changed the generators (a shuffle, a seed, a
draw of an array or by a library), and the draws are not traced.
"""

import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torchlayers.compiler.capture.bytecode import is_user_code
from torchlayers.compiler.capture.state.guarded_place import is_constant
from torchlayers.compiler.capture.state.iterators import IteratorStandIn, TakenValues, advance
from torchlayers.compiler.capture.state.opaque_state import OpaqueState
from torchlayers.compiler.capture.state.state_holders import StandIn
from torchlayers.compiler.capture.values.traced_numbers import plain_number
from torchlayers.core.shared_change import SharedChange, replace_attributes

# Methods that choose from a sequence, which is their first argument.
_CHOOSING = ("choice", "choices", "sample", "shuffle")
_PYTHONS = (
    *("random", "uniform", "triangular", "randint", "randrange", "getrandbits", "gauss"),
    *("normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gammavariate"),
    *("betavariate", "paretovariate", "weibullvariate", *_CHOOSING),
)
_NUMPYS = (
    *("random", "rand", "randn", "randint", "integers", "random_sample", "choice", "uniform"),
    *("normal", "standard_normal", "exponential", "standard_exponential", "beta", "binomial"),
    *("gamma", "standard_gamma", "geometric", "gumbel", "laplace", "logistic", "lognormal"),
    *("permutation", "dirichlet", "multinomial", "multivariate_normal", "chisquare", "standard_t"),
    *("pareto", "poisson", "power", "rayleigh", "triangular", "vonmises", "wald", "weibull"),
)


class Draw(NamedTuple):
    """One draw: the method of a generator, with constants as arguments, or ``advance``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_of_iterator(self) -> bool:
        return self.function is advance

    def again(self) -> Any:
        return self.function(*self.args, **self.kwargs)


class Draws:
    """The draws of one capture, in order.

    Args:
        states: the random generators that the function can reach.
        trace: makes a traced number of what was drawn.
        trace_choice: returns what indices that were drawn choose from a sequence.
    """

    def __init__(
        self,
        states: Sequence[OpaqueState],
        trace: Callable[[Any], Any],
        trace_choice: Callable[[Sequence[int], Any], list[Any]],
    ) -> None:
        self._before = [(state, state.get()) for state in states]
        self._known = {id(state.thing) for state in states}
        self._trace = trace
        self._trace_choice = trace_choice
        self.performed: list[Draw] = []
        self._iterators: list[tuple[OpaqueState, IteratorStandIn]] = []

    def perform(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns what is drawn, traced if each call can draw it again."""
        is_method = bool(args) and id(args[0]) in self._known
        generator, args = args[:is_method], (*map(plain_number, args[is_method:]),)
        kwargs = {key: plain_number(value) for key, value in kwargs.items()}
        chooses = getattr(function, "__module__", "") == "random" and function.__name__ in _CHOOSING
        if chooses and args:
            return self._choose(function, generator, *args, **kwargs)
        if function.__name__ == "choice":  # of NumPy
            args = (*map(_frozen, args),)
        value = function(*generator, *args, **kwargs)
        if not all(map(is_constant, (*args, *kwargs.values()))) or not _can_be_traced(value):
            return value
        self.performed.append(Draw(function, (*generator, *args), kwargs))
        return self._trace(value)

    def read(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what a function finds before the graph runs, traced."""
        draw = Draw(function, args, {})
        self.performed.append(draw)
        return self._trace(draw.again())

    def _choose(self, function: Any, generator: Any, items: Any, *args: Any, **kwargs: Any) -> Any:
        """Chooses from a sequence by indices that are drawn.

        They decide what the function goes on with, unless that is a number, which is traced.
        """
        name = function.__name__
        args = (*map(_frozen, args),)
        kwargs = {key: _frozen(value) for key, value in kwargs.items()}
        is_known = isinstance(items, (tuple, range, list))
        if not (is_known and all(map(is_constant, (*args, *kwargs.values())))):
            return function(*generator, items, *args, **kwargs)
        draw = Draw(_draw_indices, (function, generator, len(items), *args), kwargs)
        indices = draw.again()
        self.performed.append(draw)
        chosen = self._trace_choice(indices, items)
        if name == "shuffle":
            items[:] = chosen
            return None
        return chosen[0] if name == "choice" else chosen

    def stand_in(self, state: OpaqueState, taken: TakenValues) -> IteratorStandIn:
        """Returns the stand-in of an iterator, whose numbers are draws."""

        def note(value: Any) -> Any:
            if type(value) not in (int, float):
                return value
            self.performed.append(Draw(advance, (taken.iterator, taken.places), {}))
            return self._trace(value)

        stand_in = IteratorStandIn(taken, note)
        self._iterators.append((state, stand_in))
        return stand_in

    def used_iterators(self) -> list[OpaqueState]:
        """Returns the iterators of which all values were numbers, which calls can take."""
        noted = [id(draw.args[0]) for draw in self.performed if draw.is_of_iterator]
        return [
            state
            for state, stand_in in self._iterators
            if stand_in.count and noted.count(id(state.thing)) == len(stand_in.taken.values)
        ]

    @property
    def any_known(self) -> bool:
        return bool(self._known)

    def knows(self, generator: Any) -> bool:
        return id(generator) in self._known

    def used(self) -> list[OpaqueState]:
        """Returns the generators that were drawn from, if these draws account for all changes."""
        after = [state.get() for state, _ in self._before]
        for state, before in self._before:
            state.set(before)
        for draw in self.performed:
            if not draw.is_of_iterator:
                draw.again()
        changed = [*zip(self._before, after, strict=True)]
        is_all = all(state.get() == now for (state, _), now in changed)
        for (state, _), now in changed:
            state.set(now)
        return [state for (state, before), now in changed if is_all and before != now]


def _can_be_traced(value: Any) -> bool:
    """Whether each call can draw this: a constant, or an array of numbers."""
    is_array = type(value).__name__ == "ndarray" and value.dtype.kind in "biuf"
    return is_constant(value) or is_array


def _frozen(value: Any) -> Any:
    """Returns weights, or what NumPy chooses from, as a constant."""
    return (*map(plain_number, value),) if type(value) is list else value


def _draw_indices(
    function: Any, generator: Any, count: int, *args: Any, **kwargs: Any
) -> tuple[int, ...]:
    """Draws the indices of what ``function`` would choose from a sequence of this length."""
    indices = [*range(count)]
    chosen = function(*generator, indices, *args, **kwargs)
    if function.__name__ == "shuffle":
        return (*indices,)
    return (chosen,) if function.__name__ == "choice" else (*chosen,)


class NumpyGenerator(StandIn):
    """Stands for a generator of NumPy, whose class can't be changed, during a capture."""

    def __init__(self, generator: Any, draws: Draws) -> None:
        super().__init__(generator)
        self._draws = draws

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.original, name)
        draws = name in _NUMPYS
        return functools.partial(self._draws.perform, attribute) if draws else attribute


def is_of_numpy(generator: Any) -> bool:
    """Whether it is an object of NumPy, and not the module."""
    return type(generator).__module__.startswith("numpy")


class _Thread(threading.local):
    draws: Draws | None = None  # of the capture on this thread


_thread = _Thread()


def _watch() -> Callable[[], None]:
    functions = [(random, name) for name in _PYTHONS]
    methods: list[tuple[Any, str]] = [(random.Random, name) for name in _PYTHONS]
    if (numpy := sys.modules.get("numpy.random")) is not None:
        functions += [(numpy, name) for name in _NUMPYS if hasattr(numpy, name)]
    return replace_attributes(
        [(module, name, _drawing(getattr(module, name), False)) for module, name in functions]
        + [(kind, name, _drawing(getattr(kind, name), True)) for kind, name in methods]
    )


def _drawing(function: Callable[..., Any], is_method: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        draws = _thread.draws
        is_traced = draws is not None and is_user_code(sys._getframe(1).f_code)
        if draws is None or not is_traced or (is_method and not draws.knows(args[0])):
            return function(*args, **kwargs)
        return draws.perform(function, *args, **kwargs)

    return call


_watched = SharedChange(_watch)


@contextlib.contextmanager
def draws_traced(draws: Draws | None) -> Iterator[None]:
    """Inside, what this thread's user code draws is traced."""
    with _watched.made() if draws is not None else contextlib.nullcontext():
        outer, _thread.draws = _thread.draws, draws
        try:
            yield
        finally:
            _thread.draws = outer
