"""Counts how often Python runs a function, in a way that a capture does not see."""

import itertools
from collections.abc import Callable


def hidden_runs() -> tuple[Callable[[], None], Callable[[], int]]:
    """Returns a function to call at each run, and one that says how many runs there were.

    Both are methods of built-in objects, into which a capture does not look for state that changes.
    """
    runs: list[int] = []
    return map(runs.append, itertools.repeat(1)).__next__, runs.__len__
