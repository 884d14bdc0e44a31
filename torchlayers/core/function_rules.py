"""Functions and operators of torch with a rule of ours, by which modes run them."""

from collections.abc import Callable
from typing import Any

# torch's own operators of control flow, and its reentrant checkpoint, with what they do here
# (control_flow/torch_operators.py). They call functions, which a mode that is asked about the
# operator has to see too.
RULES: dict[Any, Callable[..., Any]] = {}
