"""The representation of a captured while_loop, used by its layer rules and its reverse pass."""

from collections.abc import Callable

from torch import Tensor

from torchlayers.control_flow.traced.transformed import OnTensors, Tensors


class TracedLoop:
    """A loop over tensors.

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
