"""Numbers that a function reads and replaces at each call: counters, running sums, warm-up steps.

A function that sets such a number is captured once more, with traced numbers in their places. Their
arithmetic is noted, and computed again at each call; with a tensor, they are an input of the graph.
A comparison is guarded by its outcome, anything else that Python does with a number by its value.
"""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.draws import Draw, Draws
from torchlayers.compiler.capture.opaque_state import OpaqueState
from torchlayers.compiler.capture.state_holders import StatePlace, unwrapped
from torchlayers.compiler.capture.traced_floats import TAKES_TENSORS, TracedFloat
from torchlayers.core import pytree
from torchlayers.core.torch_private import dispatch_modes

_NUMBERS = (int, float)
_PARTIAL = (operator.truediv, operator.floordiv, operator.mod, operator.pow)
_WITH_TENSORS = TAKES_TENSORS - {"setitem", "full", "new_full"}  # these take indices and sizes, too
_INTERPOLATING = {"lerp"}  # the weight has the dtype of the tensors


class Expression(NamedTuple):
    """A function of the numbers that a call reads: an operator of expressions and constants.

    ``operator`` is None for the number that is read; ``operands`` then has its index.
    """

    operator: Callable[..., Any] | None
    operands: tuple[Any, ...]

    def indices(self) -> Iterator[int]:
        """Yields the indices of the numbers that are read."""
        if self.operator is None:
            yield self.operands[0]
            return
        for each in self.operands:
            if isinstance(each, Expression):
                yield from each.indices()

    def compute(self, numbers: Sequence[Any]) -> Any:
        if self.operator is None:
            return numbers[self.operands[0]]
        return self.operator(
            *(
                each.compute(numbers) if isinstance(each, Expression) else each
                for each in self.operands
            )
        )


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
        self.draws = Draws(generators, self._trace_draw)
        self.generators: Sequence[OpaqueState] = ()
        self.iterators: Sequence[OpaqueState] = ()
        self.saves_states = False
        self._peeks = False  # whether the guard needs numbers that are drawn
        self._call = threading.local()
        self._readers = [place.reader() for place in places]
        self.values = self.read()
        self.proxies = [
            TracedNumber(self, Expression(None, (i,)), value) for i, value in enumerate(self.values)
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

    def states(self) -> list[Any]:
        return [generator.get() for generator in self.generators]

    def rewind(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set(state)

    def _trace_draw(self, value: Any) -> Any:
        expression = Expression(None, (len(self.values),))
        self.values.append(value)
        if isinstance(value, _NUMBERS) or type(value).__module__ == "numpy":
            return TracedNumber(self, expression, value)
        return self.ask(expression, value)

    def deciding(self) -> list[Expression]:
        """Returns the expressions on which the capture depends."""
        return [*self.partial, *(asked for asked, _ in self.outcomes)]

    def is_drawn(self, expression: Expression) -> bool:
        """Whether an expression depends on a number that is drawn."""
        return any(place >= len(self.places) for place in expression.indices())

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
        if not isinstance(result, bool):
            self.fixed.update(expression.indices())
        return result

    def as_tensor(self, number: "TracedNumber", like: Tensor, is_same: bool) -> Any:
        """Returns a number as an input of the graph that promotes types as the number does.

        Args:
            is_same: whether it has to have the dtype of ``like``.
        """
        if like.is_complex() or like.dtype is torch.bool:
            return number.plain()
        is_float = isinstance(number.value, float)
        if like.is_floating_point() or not is_float:
            wide = torch.float64 if like.is_floating_point() else torch.int64
            dtype = wide if like.dim() and not is_same else like.dtype
        else:
            dtype = torch.get_default_dtype()
        return self.add_input(number, dtype)

    def add_input(self, number: "TracedNumber", dtype: torch.dtype) -> Tensor:
        with dispatch_modes._disable_current_modes():
            tensor: Tensor = unwrapped(torch.tensor(number.value, dtype=dtype))
        self.tensors.append((tensor, number.expression))
        return tensor

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


def _kind(value: Any) -> str:
    return type(value).__name__


class TracedNumber:
    """A number that notes what is done with it. To isinstance, it is an int or a float."""

    __slots__ = ("_numbers", "expression", "value")

    def __init__(self, numbers: TracedNumbers, expression: Expression, value: Any) -> None:
        self._numbers = numbers
        self.expression = expression
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __copy__(self) -> "TracedNumber":
        return self

    def __deepcopy__(self, memo: Any) -> "TracedNumber":
        return self

    def as_traced_float(self, beside: TracedFloat) -> TracedFloat:
        return beside.computed(self._numbers.as_tensor(self, beside.tensor, is_same=True))

    def as_result(self) -> Tensor:
        """Returns the number as an input of the graph that is a result, too."""
        dtype = torch.float64 if isinstance(self.value, float) else torch.int64
        return self._numbers.add_input(self, dtype)

    def plain(self) -> Any:
        """Returns the number, on whose value the capture then depends."""
        return self._numbers.ask(self.expression, self.value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operands = args, kwargs or {}
        tensors = [leaf for leaf in pytree.leaves(operands) if isinstance(leaf, Tensor)]
        tensors = [tensor for tensor in tensors if tensor.dtype is not torch.bool]  # masks
        name = getattr(func, "__name__", "").strip("_")
        is_same = name in _INTERPOLATING and tensors[0].is_floating_point()

        def operand(leaf: Any) -> Any:
            return leaf._numbers.as_tensor(leaf, tensors[0], is_same) if type(leaf) is cls else leaf

        if is_same or (name in _WITH_TENSORS and len(tensors) == 1):
            operands = pytree.map_leaves(operand, operands)
        args, kwargs = pytree.map_leaves(plain_number, operands)
        return func(*args, **kwargs)


def plain_number(leaf: Any) -> Any:
    """Returns the number of a TracedNumber, and anything else as it is."""
    return leaf.plain() if type(leaf) is TracedNumber else leaf


def _arithmetic(func: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def compute(number: TracedNumber, *others: Any) -> Any:
        if any(isinstance(each, Tensor) for each in others):
            return NotImplemented
        floats = [each for each in others if type(each) is TracedFloat]
        if floats:
            traced = number.as_traced_float(floats[0])
            return func(*others, traced) if is_reflected else func(traced, *others)
        operands = (*others, number) if is_reflected else (number, *others)
        values = [each.value if type(each) is TracedNumber else each for each in operands]
        result = func(*values)
        expression = Expression(
            func,
            tuple(each.expression if type(each) is TracedNumber else each for each in operands),
        )
        if func in _PARTIAL:
            number._numbers.partial.append(expression)
        if type(result) in _NUMBERS and all(type(each) in _NUMBERS for each in values):
            return TracedNumber(number._numbers, expression, result)
        return number._numbers.ask(expression, result)

    return compute


def _asking(func: Callable[..., Any]) -> Callable[..., Any]:
    def ask(number: TracedNumber, *rest: Any) -> Any:
        number.plain()
        return func(number.value, *rest)

    return ask


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _func = getattr(operator, _name)
    setattr(TracedNumber, f"__{_name}__", _arithmetic(_func))
    setattr(TracedNumber, f"__r{_name}__", _arithmetic(_func, is_reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs"):
    setattr(TracedNumber, f"__{_name}__", _arithmetic(getattr(operator, _name)))
TracedNumber.__bool__ = _arithmetic(operator.truth)  # type: ignore[attr-defined]
_asked: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "hash": hash,
    "str": str,
    "repr": repr,
    "format": format,
    "round": round,
    "divmod": divmod,
}
for _name, _func in _asked.items():
    setattr(TracedNumber, f"__{_name}__", _asking(_func))
