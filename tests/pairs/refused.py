"""The cells of the table of pairs that are refused, on purpose, and in which words."""

import re
from typing import NamedTuple


class Refused(NamedTuple):
    """Pairs of a feature and a nest, as regular expressions, that raise an error of these words."""

    features: str
    nests: str
    words: str
    why: str


REFUSED: list[Refused] = []


def words(feature: str, nest: str) -> str | None:
    """What the error of a pair says, or None where the pair is right."""
    found = of(feature, nest)
    return found.words if found else None


def of(feature: str, nest: str) -> Refused | None:
    for refused in REFUSED:
        if re.fullmatch(refused.features, feature) and re.fullmatch(refused.nests, nest):
            return refused
    return None
