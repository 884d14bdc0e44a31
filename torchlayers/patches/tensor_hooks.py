"""x.register_hook and x.register_post_accumulate_grad_hook inside transforms.

torch's methods raise an error for a tensor that does not require grad itself, even if an outer
level tracks the values inside. csrc/python/hooks/tensor_hooks.cpp registers the hook at that level.
"""

from collections.abc import Callable
from typing import Any

from torchlayers import _C


def register_hook_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Tensor.register_hook."""

    def register_hook(self: Any, hook: Any) -> Any:
        handle = _C.register_hook(self, hook)
        return torchs(self, hook) if handle is None else handle

    return register_hook


def register_accumulated_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Tensor.register_post_accumulate_grad_hook."""

    def register_post_accumulate_grad_hook(self: Any, hook: Any) -> Any:
        _C.refuse_hook_after_accumulation(self)
        return torchs(self, hook)

    return register_post_accumulate_grad_hook
