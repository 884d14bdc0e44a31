"""What a row of the table of pairs is."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
MATRIX = torch.tensor(
    [[2.0, 0.3, -0.1, 0.2], [0.1, 1.5, 0.4, 0.0], [0.0, -0.2, 1.8, 0.3], [0.5, 0.1, 0.2, 2.2]],
    dtype=torch.float64,
)


class Feature(NamedTuple):
    """A function of a vector of four numbers that uses a feature, and the same without it."""

    uses: Function
    plain: Function
    over_ranks: bool = False


FEATURES: dict[str, Feature] = {}


def row(name: str, plain: Function, *, over_ranks: bool = False) -> Callable[[Function], Function]:
    """Adds a row: the function below uses the feature, the plain one is the same mathematics.

    With ``over_ranks``, the processes of a group run it, along the axis "ranks".
    """

    def add(uses: Function) -> Function:
        FEATURES[name] = Feature(uses, plain, over_ranks)
        return uses

    return add
