"""A loop, as its layers and its reverse pass see it."""

from collections.abc import Callable

from torch import Tensor

from torchlayers.control_flow.traced.transformed import OnTensors, Tensors


class Loop:
    """A loop over tensors.

    Args:
        cond: of the carry and what the functions capture: whether to go on, one bool.
        body: likewise: the next carry, of the same shapes and dtypes.
        carried: how many tensors are carried.
        counts: whether somebody asks for the number of trips.
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
