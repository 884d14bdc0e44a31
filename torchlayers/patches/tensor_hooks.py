"""x.register_hook, x.register_post_accumulate_grad_hook and hooks on several tensors in transforms.

torch's functions raise an error for a tensor that does not require grad itself, even if an outer
level tracks the values inside. csrc/python/hooks/tensor_hooks.cpp registers the hook at that level.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

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
        _C.refuse_inside(
            self,
            "x.register_post_accumulate_grad_hook(...)",
            "Register the hook on that value, or use x.register_hook(...).",
        )
        return torchs(self, hook)

    return register_post_accumulate_grad_hook


class _RecordedValue:
    """A tensor as torch.autograd.graph.register_multi_grad_hook reads it."""

    def __init__(self, node: Any, register_hook: Callable[[Any], Any] | None):
        self.grad_fn = node
        self.requires_grad = node is not None
        self.register_hook = register_hook


def register_multi_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces torch.autograd.graph.register_multi_grad_hook."""

    def register_multi_grad_hook(
        tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
    ) -> Any:
        recorded = _C.recorded_for_hooks([*tensors])
        if recorded is None:
            return torchs(tensors, fn, mode=mode)
        return torchs([_RecordedValue(*entry) for entry in recorded], fn, mode=mode)

    return register_multi_grad_hook


def gradient_edge_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces torch.autograd.graph.get_gradient_edge."""

    def get_gradient_edge(tensor: Tensor) -> Any:
        _C.refuse_inside(
            tensor,
            "torch.autograd.graph.get_gradient_edge(x)",
            "Differentiate with respect to it by torchlayers.grad inside that transform.",
        )
        return torchs(tensor)

    return get_gradient_edge
