"""The cells of the table of pairs that are refused, on purpose, and in which words."""

import re
from typing import NamedTuple


class Refused(NamedTuple):
    """Pairs of a feature and a nest, as regular expressions, that raise an error of these words."""

    features: str
    nests: str
    words: str
    why: str


_FORWARD = (
    "jvp|jacfwd|hessian|hvp|linearize|jet|laplacian|hessian_diagonal|biharmonic|"
    "directional_derivatives|jacfwd, sparse|.*jvp.*|.*jet.*|.*laplacian.*|.*hessian.*|"
    "plain forward mode"
)
REFUSED = [
    Refused(
        "checkpoint.*|scan, checkpointed|torch's checkpoint|grad, by a memory budget",
        "torch.func.grad",
        "torch.func.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks",
        "torch.func refuses what saved-tensor hooks need; torchlayers' grad does not",
    ),
    Refused(
        "functionalize inside",
        "functionalize|grad\\(functionalize\\)|vmap\\(functionalize\\)",
        "functionalize can't be applied directly inside functionalize",
        "it would change nothing",
    ),
]


def words(feature: str, nest: str) -> str | None:
    """What the error of a pair says, or None where the pair is right."""
    found = of(feature, nest)
    return found.words if found else None


def of(feature: str, nest: str) -> Refused | None:
    for refused in REFUSED:
        if re.fullmatch(refused.features, feature) and re.fullmatch(refused.nests, nest):
            return refused
    return None
