"""Backward hooks of modules inside transforms (tensor hooks: csrc/python/hooks/tensor_hooks.cpp).

torch.nn.Module registers its backward hooks on an autograd node, which it creates if an input or
output of the module requires grad. Inside vmap, jvp, or a grad with respect to something else, a
tensor does not require grad although an outer level may record it. So inside our layers
csrc/layers/module_hook.h creates the node, at the highest level that records any of the tensors;
and a hook registered inside a vmap is called inside it. NOTE [Hooks under vmap].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import current_stack


class Handle(RemovableHandle):
    """torch's handle with slots, so that C++ can set the attributes directly."""

    __slots__ = ("extra_dict_ref", "hooks_dict_ref", "id")


class _Node(NamedTuple):
    """An autograd node with the interface that BackwardHook uses."""

    node: Any
    placed: Callable[[Any], Any]

    def register_hook(self, hook: Any) -> None:
        self.node.register_hook(self.placed(hook))


def _is_ours() -> bool:
    return not tracing_state.is_tracing() and _C.any_layer()


def hook_node_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces BackwardHook._apply_on_tensors.

    Returns args, passed through a new node that `set_hooks` is called with, and the indices of the
    tensors among them.
    """

    def apply_on_tensors(self: Any, set_hooks: Callable[[Any], None], args: Any) -> Any:
        if not _is_ours():
            return torchs(self, set_hooks, args)
        return _behind_one_node(set_hooks, args)

    return apply_on_tensors


def _behind_one_node(set_hooks: Callable[[Any], None], args: Any) -> Any:
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    behind = None
    if torch.is_grad_enabled():
        behind = _C.behind_node_of_hooks([args[i] for i in places])
    if behind is None:
        return args, None
    tensors, recorded, placed = behind
    set_hooks(_Node(recorded.grad_fn, placed))
    results = [*args]
    for i, tensor in zip(places, tensors, strict=True):
        results[i] = tensor
    return tuple(results) if type(args) is tuple else type(args)(*results), places


def module_hooks_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Module._get_backward_hooks."""

    def get_backward_hooks(self: nn.Module) -> Any:
        full, not_full = torchs(self)
        if not_full and _is_ours():
            _refuse_hooks_of_outer_levels(self)
        return full, not_full

    return get_backward_hooks


def _refuse_hooks_of_outer_levels(module: nn.Module) -> None:
    *outer, top = current_stack()
    if top.kind != "grad" and any(layer.kind == "grad" for layer in outer):
        raise TransformError(
            f"torchlayers: {top.kind} (level {top.level}) can't call the hooks that "
            f"register_backward_hook has put on {type(module).__name__}: they are registered on "
            "the node of the module's result, which belongs to an outer level. Use "
            "register_full_backward_hook."
        )
