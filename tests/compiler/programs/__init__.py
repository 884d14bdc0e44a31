"""Small programs as people write them in PyTorch, each made anew for each test.

A program returns a function of a tensor of three numbers, and the Python state that it changes.
"""

from collections.abc import Callable
from typing import Any

Program = Callable[[], tuple[Callable[..., Any], Any]]
