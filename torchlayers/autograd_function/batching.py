"""Adds and removes a vmap's batch dimension on a Function's operands, outputs and saved values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree


class Dims:
    """The batch dimensions of a vmapped Function's outputs, returned as an additional, non-tensor
    output."""

    def __init__(self, dims: tuple[Any, ...], is_single: bool) -> None:
        self.tree = dims
        self.is_single = is_single


def add_batch_dims(values: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """Returns the values with the given dimensions hidden as the top layer's batch dimension."""
    return [_add_batch_dim(value, dim) for value, dim in zip(values, dims, strict=True)]


def _add_batch_dim(value: Any, dim: Any) -> Any:
    if isinstance(value, Tensor):
        return value if dim is None else _C.add_batch_dim(value, dim)
    if dim is None or value is None:  # None: no gradient
        return value
    flat, spec = pytree.flatten(value)
    return pytree.unflatten(add_batch_dims(flat, pytree.leaves(dim)), spec)


def remove_batch_dims(values: Sequence[Any], level: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the values with this level's batch dimension exposed, and its position in each.

    A position is an int or None, or a container of these where the value is a container of tensors.
    """
    pairs = [_remove_batch_dim(value, level) for value in values]
    return tuple(value for value, _ in pairs), tuple(dim for _, dim in pairs)


def _remove_batch_dim(value: Any, level: int) -> tuple[Any, Any]:
    if isinstance(value, Tensor):
        return _C.unbatched(value, level)
    if not isinstance(value, (tuple, list, dict)):
        return value, None
    saved = SavedValue.wrap(value, level)
    if not isinstance(saved, SavedValue):
        return value, None
    return pytree.unflatten(saved.leaves, saved.spec), pytree.unflatten(saved.dims, saved.spec)


_PLAIN = (int, float, bool, str, type(None), torch.Size)


class SavedValue(NamedTuple):
    """A value saved beyond the end of its vmap: its leaves, unbatched, the batch dimension of each,
    and the pytree structure."""

    leaves: list[Any]
    dims: list[int | None]
    spec: pytree.TreeSpec

    @staticmethod
    def wrap(value: Any, level: int) -> Any:
        """Returns the value as a SavedValue, or unchanged if no leaf is batched."""
        if type(value) in _PLAIN:
            return value
        flat, spec = pytree.flatten(value)
        pairs = [
            _C.unbatched(leaf, level) if isinstance(leaf, Tensor) else (leaf, None) for leaf in flat
        ]
        if all(dim is None for _, dim in pairs):
            return value
        return SavedValue([leaf for leaf, _ in pairs], [dim for _, dim in pairs], spec)

    def shown(self) -> Any:
        """Returns the value with its batch dimensions hidden by the top layer again."""
        return pytree.unflatten(add_batch_dims(self.leaves, self.dims), self.spec)


def select_sample(values: Sequence[Any], dims: Sequence[Any], i: int) -> list[Any]:
    """Returns the values for sample i of the batch."""
    return [
        value.select(dim, i) if isinstance(value, Tensor) and dim is not None else value
        for value, dim in zip(values, dims, strict=True)
    ]


def stack_samples(samples: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Stacks the samples' results; returns the values and the batch dimension of each.

    Values that are not tensors are taken from the first sample.
    """
    values = [
        torch.stack(list(column)) if isinstance(column[0], Tensor) else column[0]
        for column in zip(*samples, strict=True)
    ]
    return tuple(values), tuple(0 if isinstance(value, Tensor) else None for value in values)
