"""A graph run by a loop."""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.fx import GraphModule


def replay(graph: GraphModule) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """The graph as a function of a list of its inputs."""
    return lambda tensors: graph(*tensors)
