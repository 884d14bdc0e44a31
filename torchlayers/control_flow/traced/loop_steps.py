"""A scan, as its layers and its reverse pass see it."""

from torchlayers.control_flow.traced.transformed import OnTensors


class Steps:
    """The steps of a scan over tensors.

    Args:
        body: of the carry, a slice of each x, and what it captures: the next carry, of the same
            shapes and dtypes, and the ys.
        carried: how many tensors are carried.
        sliced: how many xs there are, at least one.
        keeps: whether the last ys are the carries before each step.
    """

    def __init__(self, body: OnTensors, carried: int, sliced: int, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.body = body
        self.carried = carried
        self.sliced = sliced

    @property
    def given(self) -> int:
        """How many tensors there are before those that the body captures."""
        return self.carried + self.sliced
