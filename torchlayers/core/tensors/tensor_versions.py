"""How often a tensor has been written to."""

from typing import Any

import torch

from torchlayers.core.torch_private import functorch, is_wrapped


def version_of(value: Any) -> int:
    """The version counters of a tensor and of the values it wraps, added up: a batched tensor does
    not count writes itself. 0 for what is not a tensor."""
    version = 0
    while isinstance(value, torch.Tensor):
        version += 0 if value.is_inference() else value._version
        value = functorch.get_unwrapped(value) if is_wrapped(value) else None
    return version


def describe_write(saved: int, current: int) -> str:
    """The end of an error message about a saved tensor that has been written to since."""
    return (
        "for its gradient has been modified by an inplace operation since: it is at version "
        f"{current}; expected version {saved}. Use the out-of-place operator, or write to a clone."
    )
