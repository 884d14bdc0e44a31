"""Numbers that a function reads and replaces at each call, and those that it draws.

A function that sets such a number is captured once more, with traced numbers in their places
(traced_numbers.py). Calls compute their expressions again, and a guard compares what was asked of
them.
"""

import contextlib
import operator
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.capture.draws import Draw, Draws
from torchlayers.compiler.capture.state.guarded_place import is_constant
from torchlayers.compiler.capture.state.opaque_state import OpaqueState
from torchlayers.compiler.capture.state.state_holders import StatePlace, unwrapped
from torchlayers.compiler.capture.values.traced_numbers import Expression, HostArray, HostNumber
from torchlayers.core.torch_private import dispatch_modes


class TracedNumbers:
    """The traced numbers of one capture: those in places, and then those that are drawn.

    Args:
        generators: of random numbers, whose draws are traced; they are now as before the call.

    Attributes:
        places: from which they are read.
        values: what is there now.
        proxies: what the function finds there.
        draws: of the function.
        generators: the random ones that it drew from.
        arrays: those of NumPy of which it read or set elements.
        iterators: those that it drew from.
        saves_states: whether calls save the states of these, for ``of_call``.
        outcomes: what else Python asked of them, with the results.
        partial: expressions that have no value for some numbers.
        fixed: the indices of those of which the value was asked.
        tensors: those that are inputs of the graph: a tensor, and what it is computed from.
    """

    def __init__(
        self, places: Sequence[StatePlace], generators: Sequence[OpaqueState] = ()
    ) -> None:
        self.places = places
        self.draws = Draws(generators, self._trace_draw, self._trace_choice)
        self.generators: Sequence[OpaqueState] = ()
        self.arrays: Sequence[OpaqueState] = ()
        self.iterators: Sequence[OpaqueState] = ()
        self.saves_states = False
        self._peeks = False  # whether the guard needs numbers that are drawn
        self._call = threading.local()
        self._readers = [place.reader() for place in places]
        self.values = self.read()
        self.proxies = [
            HostNumber(self, Expression(None, (i,)), value) for i, value in enumerate(self.values)
        ]
        self.outcomes: list[tuple[Expression, Any]] = []
        self.partial: list[Expression] = []
        self.fixed: set[int] = set()
        self.tensors: list[tuple[Tensor, Expression]] = []

    def read(self) -> list[Any]:
        """Returns the numbers that are in places now."""
        return [read() for read in self._readers]

    def peek(self) -> list[Any]:
        """Returns like ``draw`` what calls draw from generators, and leaves them as they are."""
        with self.rewound():
            return [*self.read(), *(self._peek(draw) for draw in self.draws.performed)]

    @staticmethod
    def _peek(draw: Draw) -> Any:
        return None if draw.is_of_iterator else draw.again()

    def draw(self) -> list[Any]:
        """Returns the numbers of a call, which draws those that follow the ones in places."""
        if self.saves_states:
            self._call.states = self.states()
        return [*self.read(), *(draw.again() for draw in self.draws.performed)]

    def of_call(self) -> tuple[list[Any], Sequence[Any]]:
        """Returns what a call has found: the numbers in places, and the generators' states."""
        return self.read(), self._call.states if self.saves_states else self.states()

    @contextlib.contextmanager
    def rewound(self, states: Sequence[Any] | None = None) -> Iterator[None]:
        """Restores the generators on exit; inside, they have these states."""
        before = self.states()
        try:
            self.rewind(before if states is None else states)
            yield
        finally:
            self.rewind(before)

    @property
    def restored(self) -> Sequence[OpaqueState]:
        """What a call changes beside the numbers in places, for running it once more."""
        return (*self.generators, *self.arrays)

    def states(self) -> list[Any]:
        return [generator.get() for generator in self.restored]

    def rewind(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self.restored, states, strict=True):
            generator.set(state)

    def _trace_draw(self, value: Any) -> Any:
        expression = Expression(None, (len(self.values),))
        self.values.append(value)
        if type(value).__name__ == "ndarray":
            return HostArray(self, expression, value)
        if isinstance(value, (int, float)) or type(value).__module__ == "numpy":
            return HostNumber(self, expression, value)
        return self.ask(expression, value)

    def _trace_choice(self, indices: Sequence[int], items: Any) -> list[Any]:
        drawn = Expression(None, (len(self.values),))
        self.values.append(indices)
        places = [Expression(operator.getitem, (drawn, i)) for i in range(len(indices))]
        if all(type(item) in (int, float) for item in items):
            every = (*items,)
            return [
                HostNumber(self, Expression(operator.getitem, (every, place)), every[index])
                for place, index in zip(places, indices, strict=True)
            ]
        return [items[self.ask(place, index)] for place, index in zip(places, indices, strict=True)]

    def deciding(self) -> list[Expression]:
        """Returns the expressions on which the capture depends."""
        return [*self.partial, *(asked for asked, _ in self.outcomes)]

    def is_drawn(self, expression: Expression) -> bool:
        """Whether an expression depends on a number that is drawn."""
        return any(place >= len(self.places) for place in expression.indices())

    def drawn_for(self, expression: Expression) -> str:
        """Describes the draws up to the last that an expression needs."""
        count = max(0, *(i + 1 - len(self.places) for i in expression.indices()))
        return " ".join(
            repr(part) if is_constant(part) else str(id(part))
            for draw in self.draws.performed[:count]
            for part in (draw.function.__name__, *draw.args, *draw.kwargs.items())
        )

    def find_generators(self, reads_states: bool) -> None:
        """Finds what the capture drew from, if calls can draw it again.

        Args:
            reads_states: whether code asks for the states of generators.
        """
        draws = self.draws.performed
        needed = {i - len(self.places) for each in self.deciding() for i in each.indices()}
        if reads_states or any(i >= 0 and draws[i].is_of_iterator for i in needed):
            return
        self.generators, self.iterators = self.draws.used(), self.draws.used_iterators()
        self._peeks = any(i >= 0 for i in needed)

    def ask(self, expression: Expression, result: Any) -> Any:
        """Notes a result on which the capture depends."""
        self.outcomes.append((expression, result))
        if type(result).__name__ not in ("bool", "bool_"):  # of NumPy
            self.fixed.update(expression.indices())
        return result

    def add_input(self, number: HostNumber, dtype: torch.dtype | None) -> Tensor:
        """Returns the tensor of a number; an array has its own dtype."""
        for tensor, expression in self.tensors:
            if dtype in (None, tensor.dtype) and _is_same(expression, number.expression):
                return tensor
        with dispatch_modes._disable_current_modes():
            input_tensor: Tensor = unwrapped(torch.tensor(number.value, dtype=dtype))
        self.tensors.append((input_tensor, number.expression))
        return input_tensor

    def hold(self) -> Any:
        """Returns what the guard compares: the kinds of the numbers, and the outcomes."""
        try:
            now = self.peek() if self._peeks else self.read()
            for expression in self.partial:
                expression.compute(now)
            return (
                *map(_kind, now[: len(self.places)]),
                *(asked.compute(now) for asked, _ in self.outcomes),
            )
        except Exception:
            return None


def _is_same(one: Expression, other: Expression) -> bool:
    """Whether two expressions are equal, and not as 1 equals 1.0."""
    return one == other and repr(one) == repr(other)


def _kind(value: Any) -> str:
    return type(value).__name__
