"""Errors for arguments that should be functions and are not."""

from typing import Any

from torchlayers.core.errors import CallError


def require_function(func: Any) -> None:
    """Raises CallError unless the function of a transform is callable: mostly it is a result."""
    if not callable(func):
        raise CallError(
            f"torchlayers: a transform takes a function, got {type(func).__name__}. Pass the "
            "function itself: grad(f)(x) and vjp(f, x), not grad(f(x))."
        )


def check_function(
    api: str, name: str, func: Any, *, optional: bool = False, advice: str = ""
) -> None:
    """Raises CallError unless func is callable, or None where it is optional."""
    if callable(func) or (optional and func is None):
        return
    kind = "None" if func is None else f"of type {type(func).__name__}"
    text = f"torchlayers: {api}: {name} must be a function, but is {kind}. {advice}"
    raise CallError(text.rstrip())
