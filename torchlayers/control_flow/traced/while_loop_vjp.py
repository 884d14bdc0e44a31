"""The reverse pass of a recorded loop.

NOTE [A loop run backward]
A recording has sizes that are known, so the carries of all trips can't be kept. The loop runs once
more: its carry is kept in a few places before some trips, and each trip starts from the last one
kept before it, at first from the first. While there are free places they are spread by halves, so
that of n trips none runs again more often than log2(n / places) times, and none at all where there
is a place for each. All of that is loops again, which every layer knows: the reverse pass can be
batched, and differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.traced.closure_conversion import Fixed, fixed_as, frozen
from torchlayers.control_flow.traced.loop import Loop
from torchlayers.control_flow.traced.transformed import Tensors, places_of, pulled

PLACES = 16


class Reverse:
    """The reverse pass of a loop, made where the loop is run.

    Args:
        tensors: the first carry, and what the loop's functions capture.
        wanted: which of the tensors have a cotangent.
        repeat: what runs a loop under every layer (while_loop_op.py).
    """

    def __init__(
        self,
        loop: Loop,
        tensors: Tensors,
        wanted: Sequence[int],
        repeat: Callable[[Loop, Tensors], list[Tensor]],
    ) -> None:
        count = loop.carried
        self.repeat = repeat
        self.count = count
        self.counts = loop.counts
        self.wanted = wanted
        self.floats = places_of([True] * count, tensors[:count])
        self.others = [i for i in wanted if i >= count]
        self.body = frozen(loop.body, tensors)
        places = [*self.floats, *self.others]

        def pull(given: Tensors) -> list[Tensor]:
            return pulled(loop.body, given[len(self.floats) :], places, given[: len(self.floats)])

        self.pull = frozen(
            fixed_as(loop.body, pull), [*(tensors[i] for i in self.floats), *tensors]
        )

    def pull_back(
        self, tensors: Tensors, trips: Tensor, cotangents: Sequence[Any]
    ) -> list[Tensor | None]:
        """Cotangents of the tensors, of those that are wanted.

        Args:
            tensors: as they were given.
            trips: how many there were.
            cotangents: of the last carry.
        """
        carry, captured = tensors[: self.count], tensors[self.count :]
        start = torch.zeros_like(trips)
        at = torch.zeros(PLACES, dtype=torch.int64, device=trips.device)
        rows = [_put(x.new_zeros(PLACES, *x.shape), start, x) for x in carry]
        given = [
            torch.zeros_like(tensors[i]) if (g := cotangents[i]) is None else g for i in self.floats
        ]
        totals = [torch.zeros_like(tensors[i]) for i in self.others]
        state = [trips - 1, start, at, *rows, *given, *totals]
        backward = Loop(lambda given: given[0] >= 0, Fixed(self._step), len(state), self.counts)
        gradients = self.repeat(backward, [*state, *captured])[3 + self.count :]
        found: list[Tensor | None] = [None] * len(tensors)
        for i, gradient in zip([*self.floats, *self.others], gradients, strict=True):
            found[i] = gradient if i in self.wanted else None
        return found

    def _step(self, given: Tensors) -> list[Tensor]:
        """One trip backward."""
        count, floats, others = self.count, len(self.floats), len(self.others)
        trip, top, at = given[:3]
        rows = given[3 : 3 + count]
        cotangents = given[3 + count :][:floats]
        totals = given[3 + count + floats :][:others]
        captured = given[3 + count + floats + others :]
        top, at, *state = self._descend([top, at, *rows], trip, captured)
        rows, carry = state[:count], state[count:]
        found = self.pull([*cotangents, *carry, *captured])
        totals = [total + new for total, new in zip(totals, found[floats:], strict=True)]
        top = torch.where(_row(at, top) == trip, top - 1, top)
        return [trip - 1, top.clamp(min=0), at, *rows, *found[:floats], *totals]

    def _descend(self, kept: list[Tensor], trip: Tensor, captured: Tensors) -> list[Tensor]:
        """From the last carry that is kept to the one before this trip, keeping some between."""
        count = self.count
        top, at, *rows = kept
        position = _row(at, top)
        carry = [_row(each, top) for each in rows]

        def body(given: Tensors) -> list[Tensor]:
            position, top, at = given[:3]
            rows, carry = given[3 : 3 + count], given[3 + count :][:count]
            trip, captured = given[3 + 2 * count], given[4 + 2 * count :]
            until = position + _stride(trip - position + 1, PLACES - 1 - top)
            carry = self._advanced(position, until, carry, captured)
            top = top + 1
            rows = [_put(each, top, x) for each, x in zip(rows, carry, strict=True)]
            return [until, top, _put(at, top, until), *rows, *carry]

        down = Loop(
            lambda given: given[0] < given[3 + 2 * count], Fixed(body), 3 + 2 * count, self.counts
        )
        _, *found = self.repeat(down, [position, top, at, *rows, *carry, trip, *captured])
        return found

    def _advanced(
        self, position: Tensor, end: Tensor, carry: Tensors, captured: Tensors
    ) -> list[Tensor]:
        count = self.count

        def body(given: Tensors) -> list[Tensor]:
            return [given[0] + 1, *self.body([*given[1 : 1 + count], *given[2 + count :]])]

        on = Loop(lambda given: given[0] < given[1 + count], Fixed(body), 1 + count, self.counts)
        return self.repeat(on, [position, *carry, end, *captured])[1:]


def _stride(length: Tensor, free: Tensor) -> Tensor:
    """How many trips to run to the next place, of those up to one, with so many places free."""
    half = torch.where(free == 1, length - 1, length // 2)
    return torch.where(length <= free, torch.ones_like(length), half)


def _row(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.reshape(1)).squeeze(0)


def _put(rows: Tensor, index: Tensor, row: Tensor) -> Tensor:
    places = torch.arange(PLACES, device=rows.device).view(-1, *(1,) * (rows.dim() - 1))
    return torch.where(places == index, row, rows)
