"""How often a tensor has been written to, at each level."""

from typing import Any

import torch

_functorch: Any = torch._C._functorch


def versions_of(value: Any) -> list[int]:
    """The version counters of a tensor and of the values it wraps, as a batched tensor does not
    count writes itself. Empty for what is no tensor."""
    versions = []
    while isinstance(value, torch.Tensor):
        versions.append(0 if value.is_inference() else value._version)
        is_wrapped = _functorch.is_functorch_wrapped_tensor(value)
        value = _functorch.get_unwrapped(value) if is_wrapped else None
    return versions
