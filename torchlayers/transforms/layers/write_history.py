"""Keeps the history of tensors of a layer that are written to where nothing is recorded."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.transforms.layers.layer_tensor import LayerTensor


def with_history(layer: Any, before: Tensor, after: Tensor, is_detached: bool) -> Tensor:
    """The result of a write that no derivative sees, with the history of what was there before:
    NOTE [Writes that are not recorded] in csrc/layers/functionalize/history.h. Below the layer.

    Args:
        is_detached: the write was to a detached tensor, rather than under no_grad.
    """

    def keep_history(old: Tensor, new: Tensor) -> Tensor:
        return _C.with_history_of(old, new, is_detached)

    before, after = layer._plain_or_owned(before), layer._plain_or_owned(after)
    value = keep_history(layer._value(before), layer._value(after))
    parts = before.parts if isinstance(before, LayerTensor) and layer._owns(before) else None
    if not is_detached:  # else the memory's numbers are new, and its parts are as they were
        if isinstance(after, LayerTensor) and layer._owns(after):
            parts = layer._rewritten_parts(parts, after, keep_history)
        else:
            parts = None
    is_constant = parts is None and not layer._owns(before if is_detached else after)
    return value if is_constant else layer.tensor(value, parts)


def parts_with_history(
    before: Any, after: LayerTensor, keep_history: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """The parts of `after`, with the history of those that the tensor had before."""
    old, old_spec = pytree.flatten(before)
    new, spec = pytree.flatten(after.parts)
    if old_spec != spec:
        return after.parts
    return pytree.unflatten(
        [
            keep_history(x, y)
            if isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape
            else y
            for x, y in zip(old, new, strict=True)
        ],
        spec,
    )
