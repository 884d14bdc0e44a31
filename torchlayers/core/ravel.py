"""ravel: the tensors of a pytree as one vector."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import StructureError

__all__ = ["ravel"]


def ravel(tree: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Concatenates the tensors of a pytree to a vector, for optimizers and solvers that take one.

    Args:
        tree: a pytree of tensors on one device. Leaves of other types are no part of the vector.
    Returns:
        ``(vector, unravel)``. The vector has the dtype to which the tensors' dtypes are promoted;
        without tensors it is empty, of the default dtype. ``unravel(vector)`` returns the pytree
        with the numbers of a vector of this length, each tensor in its own shape and dtype (rounded
        towards zero if that is an integer), and leaves that are not tensors as they were. Both are
        differentiable, and batched.
    Raises:
        StructureError: unravel is called with anything but a vector of this length.
    Example:
        >>> params = {"w": torch.ones(2, 2), "b": torch.zeros(1), "name": "linear"}
        >>> vector, unravel = ravel(params)
        >>> vector
        tensor([1., 1., 1., 1., 0.])
        >>> unravel(2 * vector)
        {'w': tensor([[2., 2.],
                [2., 2.]]), 'b': tensor([0.]), 'name': 'linear'}

    Source: jax.flatten_util.ravel_pytree.
    """
    leaves = pytree.TensorLeaves(tree)
    tensors, leaves.tensors = leaves.tensors, []
    kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]
    counts = [shape.numel() for shape, _ in kinds]
    dtype = torch.get_default_dtype()
    if kinds:
        dtype = _promote_dtypes([dtype for _, dtype in kinds])
    vector = torch.cat([tensor.reshape(-1).to(dtype) for tensor in tensors] or [torch.empty(0)])

    def unravel(vector: Tensor) -> Any:
        if not isinstance(vector, Tensor) or vector.shape != (sum(counts),):
            got = tuple(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
            raise StructureError(
                f"torchlayers: tree.ravel: unravel takes a vector of shape {(sum(counts),)}, got "
                f"{got}. Use vmap for several vectors."
            )
        split: Any = vector.split
        parts = zip(split(counts) if counts else (), kinds, strict=True)
        return leaves.put_in(_cast(part, dtype).view(shape) for part, (shape, dtype) in parts)

    return vector, unravel


def _promote_dtypes(dtypes: list[torch.dtype]) -> torch.dtype:
    *_, dtype = itertools.accumulate(dtypes, torch.promote_types)
    return dtype


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x.real if x.is_complex() and not dtype.is_complex else x).to(dtype)
