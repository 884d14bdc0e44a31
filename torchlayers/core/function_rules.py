"""A table of torch functions and operators that have our own rules, which modes apply."""

from collections.abc import Callable
from typing import Any

# torch's control-flow operators and reentrant checkpoint, with their rules
# (control_flow/torch_operators.py). They call functions, and a mode that intercepts the operator
# has to see the operators inside these too.
RULES: dict[Any, Callable[..., Any]] = {}
