"""Captured loops: their representations, and what the layer rules of both kinds share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchlayers.control_flow.traced.closure_conversion import capture_paused
from torchlayers.control_flow.traced.transformed import OnTensors, Tensors, VmappedFunction


@dataclass(eq=False)
class TracedLoop:
    """A while_loop over tensors.

    Attributes:
        cond: takes the carry and the captured tensors; returns one bool, whether to continue.
        body: takes the same; returns the next carry, with the same shapes and dtypes.
        carried: the number of tensors in the carry.
        counts: whether the number of trips is needed.
    """

    cond: Callable[[Tensors], Tensor]
    body: OnTensors
    carried: int
    counts: bool = False


@dataclass(eq=False)
class TracedScan:
    """The steps of a scan over tensors.

    Attributes:
        body: takes the carry, a slice of each x, and the captured tensors; returns the next carry,
            with the same shapes and dtypes, and the ys.
        carried: the number of tensors in the carry.
        sliced: the number of xs, at least one.
        keeps: whether the last ys are the carries before each step.
    """

    body: OnTensors
    carried: int
    sliced: int
    keeps: bool = False

    @property
    def uncaptured(self) -> int:
        """The number of tensors before the captured ones: the carry and the xs."""
        return self.carried + self.sliced


def batch_carry(
    info: Any,
    is_batched: Sequence[bool],
    carried: int,
    step: Callable[[VmappedFunction], list[bool]],
) -> tuple[VmappedFunction, list[bool]]:
    """Runs steps of a loop under vmap until no more of the carry becomes batched.

    The carry comes first in a step's arguments and in its results. The step returns which results
    are batched. Returns the last step's vmap and results.
    """
    while True:
        samples = VmappedFunction(info, is_batched)
        with capture_paused():
            results = step(samples)
        is_carry_batched = [any(pair) for pair in zip(is_batched[:carried], results, strict=False)]
        if is_carry_batched == is_batched[:carried]:
            return samples, results
        is_batched = [*is_carry_batched, *is_batched[carried:]]
