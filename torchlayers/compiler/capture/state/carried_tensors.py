"""Tensors that a function replaces at each call, such as a moving average: read at the next call.

A captured tensor is guarded by its identity. If the function stores another one in its place, a
later call takes what it finds there, if shape, dtype and the like are the same.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.signature import (
    TensorMetadata,
    is_like,
    is_plain,
    tensor_metadata,
)
from torchlayers.compiler.capture.state.state_holders import StatePlace
from torchlayers.compiler.capture.values.traced_numbers import Expression
from torchlayers.compiler.capture.values.traced_state import TracedNumbers


class CarriedTensor(NamedTuple):
    """A tensor that is read at its places at each call.

    Attributes:
        position: among the captured tensors; None if no operator reads it.
        places: all hold the same tensor.
    """

    position: int | None
    like: TensorMetadata
    places: list[StatePlace]
    name: str

    def now(self) -> Tensor | None:
        """Returns the tensor that is there; None if it does not fit."""
        value = self.places[0].read()
        if not isinstance(value, Tensor) or not is_plain(value):
            return None
        fits = is_like(tensor_metadata(value), self.like)
        return value if fits and all(p.read() is value for p in self.places[1:]) else None

    def key(self) -> Any:
        """What tells it from others."""
        where = ((id(place.holder), place[2:]) for place in self.places)
        return CarriedTensor, self.like, tuple(where)

    def add(self, place: StatePlace) -> None:
        """Adds a place, if it is another one."""
        if all(p.holder is not place.holder or p[2:] != place[2:] for p in self.places):
            self.places.append(place)


class CarriedNumber(NamedTuple):
    """A number that is computed at each call from those that are read, or are going to be drawn.

    Attributes:
        position: among the captured tensors.
        drawn: the draws that come to it, as text.
        is_size: the graph has a symbol for it: it takes an empty tensor that has this size.
    """

    position: int
    expression: Expression
    numbers: TracedNumbers
    dtype: torch.dtype
    drawn: str = ""
    is_size: bool = False

    @property
    def name(self) -> str:
        return "a number"

    @property
    def places(self) -> Sequence[StatePlace]:
        return self.numbers.places

    def key(self) -> Any:
        """What tells it from others."""
        where = ((id(place.holder), place[2:]) for place in self.places)
        return CarriedNumber, self.expression, self.dtype, self.drawn, tuple(where)

    def now(self) -> Tensor | None:
        """Returns the number as a tensor; None if it can't be computed."""
        try:
            if self.is_size:
                number = self.numbers.read()[0]
                is_valid = type(number) is int and number >= 0
                return size_carrier(number) if is_valid else None
            numbers = self.numbers.peek() if self.drawn else self.numbers.read()
            number = self.expression.compute(numbers)
            return None if isinstance(number, Tensor) else torch.tensor(number, dtype=self.dtype)
        except (TypeError, ArithmeticError):
            return None


def size_carrier(size: int) -> Tensor:
    """Returns an empty tensor of this size, by which a graph takes an integer as a symbol."""
    return torch.empty(size, 0)


def tensors_now(
    captured: Sequence[Tensor], carried: Sequence["CarriedTensor | CarriedNumber"]
) -> list[Tensor] | None:
    """Returns the captured tensors of a call; None if one that is carried does not fit."""
    tensors = [*captured]
    for state in carried:
        if (value := state.now()) is None:
            return None
        if state.position is not None:
            tensors[state.position] = value
    return tensors


@contextlib.contextmanager
def carried_restored(
    carried: Sequence[CarriedTensor | CarriedNumber],
    captured: Sequence[Tensor],
    places: Sequence[StatePlace],
    numbers: Sequence[Any],
) -> Iterator[None]:
    """Puts the state that a call has found back into its places inside.

    Args:
        captured: the captured tensors of the call.
        places, numbers: of the numbers that it read.
    """
    tensors = [state for state in carried if isinstance(state, CarriedTensor)]
    values = [
        (place, captured[state.position])
        for state in tensors
        for place in state.places
        if state.position is not None
    ]
    values += zip(places, numbers, strict=True)
    before = [(place._replace(path=()), place._replace(path=()).read()) for place, _ in values]
    try:
        for place, value in values:
            place.put(value)
        yield
    finally:
        for place, value in before:
            place.put(value)
