"""Another order of the tests, in which each that needs another to have run before fails."""

import random

import pytest


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """The files in another order, and the tests in each, the same for the same seed.

    Tests of a file stay together, because they share what its fixtures make.
    """
    generator = random.Random(seed)
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    generator.shuffle(groups)
    for group in groups:
        generator.shuffle(group)
    return [item for group in groups for item in group]
