"""The reverse pass of a captured while_loop.

NOTE [A loop run backward]
Tensors in a captured graph have known sizes, so the carries of all trips can't be saved. Instead,
the loop runs again: a fixed number of places hold the carries before some trips, and each trip
restarts from the last carry saved before it, initially from the first carry. While there are free
places they are filled by bisection, so none of n trips runs again more than log2(n / places) times,
and none at all if there is a place for each. All of this consists of loops, which every layer
supports, so the reverse pass can be batched and differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.traced.closure_conversion import Traced, trace_once, traced_as
from torchlayers.control_flow.traced.loop import TracedLoop
from torchlayers.control_flow.traced.transformed import (
    Tensors,
    differentiable_positions,
    or_zeros,
    vjp_of,
)
from torchlayers.fx.debug_ops import muted

MAX_CHECKPOINTS = 16


class WhileLoopVjp:
    """The reverse pass of a loop, constructed during its forward pass.

    Args:
        loop: the loop.
        tensors: the initial carry and the captured tensors.
        wanted: the indices of the tensors that need a cotangent.
        repeat: runs a loop under every layer (while_loop_op.py).
    """

    def __init__(
        self,
        loop: TracedLoop,
        tensors: Tensors,
        wanted: Sequence[int],
        repeat: Callable[[TracedLoop, Tensors], list[Tensor]],
    ) -> None:
        count = loop.carried
        self.repeat = repeat
        self.count = count
        self.counts = loop.counts
        self.wanted = wanted
        self.floats = differentiable_positions([True] * count, tensors[:count])
        self.others = [i for i in wanted if i >= count]
        self.body = trace_once(loop.body, tensors)
        places = [*self.floats, *self.others]

        def pull(inputs: Tensors) -> list[Tensor]:
            return vjp_of(loop.body, inputs[len(self.floats) :], places, inputs[: len(self.floats)])

        self.pull = trace_once(
            traced_as(loop.body, pull), [*(tensors[i] for i in self.floats), *tensors]
        )

    def pull_back(
        self, tensors: Tensors, trips: Tensor, cotangents: Sequence[Any]
    ) -> list[Tensor | None]:
        """Returns the cotangents of the wanted tensors, and None for the others.

        Args:
            tensors: the initial carry and the captured tensors.
            trips: the number of trips.
            cotangents: those of the last carry.
        """
        carry, captured = tensors[: self.count], tensors[self.count :]
        start = torch.zeros_like(trips)
        at = torch.zeros(MAX_CHECKPOINTS, dtype=torch.int64, device=trips.device)
        rows = [_put(x.new_zeros(MAX_CHECKPOINTS, *x.shape), start, x) for x in carry]
        cotangents_of_floats = or_zeros(cotangents, self.floats, tensors)
        totals = [torch.zeros_like(tensors[i]) for i in self.others]
        state = [trips - 1, start, at, *rows, *cotangents_of_floats, *totals]
        backward = TracedLoop(
            lambda inputs: inputs[0] >= 0,
            Traced(self._step),
            len(state),
            self.counts,
        )
        gradients = self.repeat(backward, [*state, *captured])[3 + self.count :]
        gradients_of_inputs: list[Tensor | None] = [None] * len(tensors)
        for i, gradient in zip([*self.floats, *self.others], gradients, strict=True):
            gradients_of_inputs[i] = gradient if i in self.wanted else None
        return gradients_of_inputs

    def _step(self, inputs: Tensors) -> list[Tensor]:
        """One trip backward."""
        count, floats, others = self.count, len(self.floats), len(self.others)
        trip, top, at = inputs[:3]
        rows = inputs[3 : 3 + count]
        cotangents = inputs[3 + count :][:floats]
        totals = inputs[3 + count + floats :][:others]
        captured = inputs[3 + count + floats + others :]
        top, at, *state = self._descend([top, at, *rows], trip, captured)
        rows, carry = state[:count], state[count:]
        results = self.pull([*cotangents, *carry, *captured])
        totals = [total + new for total, new in zip(totals, results[floats:], strict=True)]
        top = torch.where(_row(at, top) == trip, top - 1, top)
        return [trip - 1, top.clamp(min=0), at, *rows, *results[:floats], *totals]

    def _descend(self, saved: list[Tensor], trip: Tensor, captured: Tensors) -> list[Tensor]:
        """Runs from the last saved carry to the one before this trip, saving some in between."""
        count = self.count
        top, at, *rows = saved
        position = _row(at, top)
        carry = [_row(row, top) for row in rows]

        def body(inputs: Tensors) -> list[Tensor]:
            position, top, at = inputs[:3]
            rows, carry = inputs[3 : 3 + count], inputs[3 + count :][:count]
            trip, captured = inputs[3 + 2 * count], inputs[4 + 2 * count :]
            until = position + _stride(trip - position + 1, MAX_CHECKPOINTS - 1 - top)
            carry = self._advanced(position, until, carry, captured)
            top = top + 1
            rows = [_put(row, top, x) for row, x in zip(rows, carry, strict=True)]
            return [until, top, _put(at, top, until), *rows, *carry]

        down = TracedLoop(
            lambda inputs: inputs[0] < inputs[3 + 2 * count],
            Traced(body),
            3 + 2 * count,
            self.counts,
        )
        _, *results = self.repeat(down, [position, top, at, *rows, *carry, trip, *captured])
        return results

    def _advanced(
        self, position: Tensor, end: Tensor, carry: Tensors, captured: Tensors
    ) -> list[Tensor]:
        count = self.count

        def body(inputs: Tensors) -> list[Tensor]:
            with muted():
                new = self.body([*inputs[1 : 1 + count], *inputs[2 + count :]])
            return [inputs[0] + 1, *new]

        on = TracedLoop(
            lambda inputs: inputs[0] < inputs[1 + count], Traced(body), 1 + count, self.counts
        )
        return self.repeat(on, [position, *carry, end, *captured])[1:]


def _stride(length: Tensor, free: Tensor) -> Tensor:
    """Returns how many of ``length`` trips to run before saving the next carry in a free place."""
    half = torch.where(free == 1, length - 1, length // 2)
    return torch.where(length <= free, torch.ones_like(length), half)


def _row(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.reshape(1)).squeeze(0)


def _put(rows: Tensor, index: Tensor, row: Tensor) -> Tensor:
    places = torch.arange(MAX_CHECKPOINTS, device=rows.device).view(-1, *(1,) * (rows.dim() - 1))
    return torch.where(places == index, row, rows)
