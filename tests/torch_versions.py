"""Where torches 2.11 to 2.15 differ in the tests: what one of them lacks, and what fails there, why.

No other file of the tests asks which torch it is (docs/versions.md).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch

HERE = tuple(int(part) for part in torch.__version__.split(".")[:2])
OLDEST, NEWEST = (2, 11), (2, 15)

# Operators that have a rule, and are not in this torch.
_LACKING = {"aten::cholesky"} if HERE >= NEWEST else set()

# Names of op_db that are not in this torch's.
_NO_SAMPLES = {"cholesky", "qr"} if HERE >= NEWEST else set()


def in_this_torch(rules: Iterable[str]) -> list[str]:
    """The operators among them, of a table of rules, that this torch has."""
    return sorted({*rules} - _LACKING)


def has_samples(name: str) -> bool:
    """Whether this torch's op_db may be asked for the operator; true for a name unknown to any."""
    return name not in _NO_SAMPLES


@dataclass(frozen=True)
class Failing:
    """Tests that can't pass with some torches; all of them fail there."""

    torches: tuple[tuple[int, int], ...]
    reason: str
    file: str
    tests: str  # of their names in the file, a regular expression

    def holds(self, item: pytest.Item) -> bool:
        file, _, name = item.nodeid.partition("::")
        return (
            HERE in self.torches
            and file == f"tests/{self.file}"
            and re.fullmatch(self.tests, name) is not None
        )


FAILING: list[Failing] = []


def expect_failures(items: Iterable[pytest.Item]) -> None:
    """Marks what FAILING lists."""
    for item in items:
        for failing in FAILING:
            if failing.holds(item):
                item.add_marker(pytest.mark.xfail(reason=failing.reason, strict=True))
