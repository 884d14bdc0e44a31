"""Operands, outputs and what ctx keeps, with the batch hidden by a vmap and in sight."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree


class Dims:
    """The batch dimensions of a vmapped Function's outputs: an output more, which is no tensor."""

    def __init__(self, dims: tuple[Any, ...], is_single: bool) -> None:
        self.tree = dims
        self.is_single = is_single


def batched(values: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """The values with these dimensions hidden as the top layer's batch."""
    return [_add(value, dim) for value, dim in zip(values, dims, strict=True)]


def _add(value: Any, dim: Any) -> Any:
    if isinstance(value, Tensor):
        return value if dim is None else _C.add_batch_dim(value, dim)
    if dim is None or value is None:  # a gradient that is not there
        return value
    flat, spec = pytree.flatten(value)
    return pytree.unflatten(batched(flat, pytree.leaves(dim)), spec)


def unbatched(values: Sequence[Any], level: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The values with the batch of this level in sight, and where it is in each: an int or None,
    in the values' own structure where they hold tensors in containers."""
    pairs = [_remove(value, level) for value in values]
    return tuple(value for value, _ in pairs), tuple(dim for _, dim in pairs)


def _remove(value: Any, level: int) -> tuple[Any, Any]:
    if isinstance(value, Tensor):
        return _C.unbatched(value, level)
    if not isinstance(value, (tuple, list, dict)):
        return value, None
    held = Held.of(value, level)
    if not isinstance(held, Held):
        return value, None
    return pytree.unflatten(held.leaves, held.spec), pytree.unflatten(held.dims, held.spec)


_PLAIN = (int, float, bool, str, type(None), torch.Size)


class Held(NamedTuple):
    """A value that outlives the vmap: its leaves, where the batch is in each, its structure."""

    leaves: list[Any]
    dims: list[int | None]
    spec: pytree.TreeSpec

    @staticmethod
    def of(value: Any, level: int) -> Any:
        """The value held; or the value as it is, where nothing in it is batched."""
        if type(value) in _PLAIN:
            return value
        flat, spec = pytree.flatten(value)
        pairs = [
            _C.unbatched(leaf, level) if isinstance(leaf, Tensor) else (leaf, None) for leaf in flat
        ]
        if all(dim is None for _, dim in pairs):
            return value
        return Held([leaf for leaf, _ in pairs], [dim for _, dim in pairs], spec)

    def shown(self) -> Any:
        """The value, with the batch hidden as the top layer's."""
        return pytree.unflatten(batched(self.leaves, self.dims), self.spec)


def sample_of(values: Sequence[Any], dims: Sequence[Any], i: int) -> list[Any]:
    """The values for one sample of the batch."""
    return [
        value.select(dim, i) if isinstance(value, Tensor) and dim is not None else value
        for value, dim in zip(values, dims, strict=True)
    ]


def stacked(samples: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What each sample gave, as values with a batch, and where that is. Others are the first's."""
    values = [
        torch.stack(list(column)) if isinstance(column[0], Tensor) else column[0]
        for column in zip(*samples, strict=True)
    ]
    return tuple(values), tuple(0 if isinstance(value, Tensor) else None for value in values)
