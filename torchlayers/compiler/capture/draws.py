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
from torchlayers.compiler.capture.iterators import IteratorStandIn, StandIn, TakenValues, advance
from torchlayers.compiler.capture.opaque_state import OpaqueState
from torchlayers.compiler.capture.reachable_state import is_constant
from torchlayers.core.shared_change import SharedChange, replace_attributes

_PYTHONS = (
    *("random", "uniform", "triangular", "randint", "randrange", "choice", "getrandbits", "gauss"),
    *("normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gammavariate"),
    *("betavariate", "paretovariate", "weibullvariate"),
)
_NUMPYS = (
    *("random", "rand", "randn", "randint", "integers", "random_sample", "choice", "uniform"),
    *("normal", "standard_normal", "exponential", "standard_exponential", "beta", "binomial"),
    *("gamma", "standard_gamma", "geometric", "gumbel", "laplace", "logistic", "lognormal"),
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
    """

    def __init__(self, states: Sequence[OpaqueState], trace: Callable[[Any], Any]) -> None:
        self._before = [(state, state.get()) for state in states]
        self._known = {id(state.thing) for state in states}
        self._trace = trace
        self.performed: list[Draw] = []
        self._iterators: list[tuple[OpaqueState, IteratorStandIn]] = []

    def perform(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns what is drawn, traced if each call can draw it again."""
        value = function(*args, **kwargs)
        given = args[1:] if args and id(args[0]) in self._known else args
        if not all(map(is_constant, (value, *given, *kwargs.values()))):
            return value
        self.performed.append(Draw(function, args, kwargs))
        return self._trace(value)

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
