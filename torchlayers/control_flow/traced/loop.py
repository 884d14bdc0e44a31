"""Representations of captured loops, used by their layer rules and their reverse passes."""

from collections.abc import Callable

from torch import Tensor

from torchlayers.control_flow.traced.transformed import OnTensors, Tensors


class TracedLoop:
    """A while_loop over tensors.

    Args:
        cond: takes the carry and the captured tensors; returns one bool, whether to continue.
        body: takes the same; returns the next carry, with the same shapes and dtypes.
        carried: the number of tensors in the carry.
        counts: whether the number of trips is needed.
    """

    def __init__(
        self,
        cond: Callable[[Tensors], Tensor],
        body: OnTensors,
        carried: int,
        counts: bool = False,
    ) -> None:
        self.cond = cond
        self.body = body
        self.carried = carried
        self.counts = counts


class TracedScan:
    """The steps of a scan over tensors.

    Args:
        body: takes the carry, a slice of each x, and the captured tensors; returns the next carry,
            with the same shapes and dtypes, and the ys.
        carried: the number of tensors in the carry.
        sliced: the number of xs, at least one.
        keeps: whether the last ys are the carries before each step.
    """

    def __init__(self, body: OnTensors, carried: int, sliced: int, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.body = body
        self.carried = carried
        self.sliced = sliced

    @property
    def given(self) -> int:
        """The number of tensors before the captured ones: the carry and the xs."""
        return self.carried + self.sliced
