"""Counts how often Python runs a function, in a way that a capture does not see."""

import itertools
from collections.abc import Callable


def hidden_runs() -> tuple[Callable[[], None], Callable[[], int]]:
    """Returns a function to call at each run, and one that says how many runs there were.

    Both are methods of built-in objects, into which a capture does not look for state that changes.
    """
    runs: list[int] = []
    return map(runs.append, itertools.repeat(1)).__next__, runs.__len__


class counted:
    """A function that counts how often Python runs it, in a way that a capture does not see."""

    def __init__(self, func):
        self._func = func
        self._step, self._runs = hidden_runs()

    def __call__(self, *args):
        self._step()
        return self._func(*args)

    @property
    def count(self):
        return self._runs()
