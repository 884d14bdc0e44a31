"""The representation of a captured scan, used by its layer rules and its reverse pass."""

from torchlayers.control_flow.traced.transformed import OnTensors


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
