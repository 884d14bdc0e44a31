"""ShapeDtypeStruct: a tensor's shape, dtype and device, without its values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.torch_private import FakeTensorMode

__all__ = ["ShapeDtypeStruct", "fake_tensors"]


@dataclasses.dataclass(frozen=True, init=False)
class ShapeDtypeStruct:
    """The shape, dtype and device of a tensor that need not exist.

    Args:
        shape: the sizes.
        dtype: torch's default dtype if None.
        device: a device, or its name, not necessarily of this machine; torch's default if None.
    Example:
        >>> torchlayers.ShapeDtypeStruct((2, 3), torch.float64).shape
        torch.Size([2, 3])

    Source: jax.ShapeDtypeStruct.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        object.__setattr__(self, "shape", torch.Size(shape))
        object.__setattr__(self, "dtype", torch.get_default_dtype() if dtype is None else dtype)
        object.__setattr__(self, "device", _device(device))

    def __repr__(self) -> str:
        return (
            f"ShapeDtypeStruct(shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )

    @staticmethod
    def of(tensor: Tensor) -> "ShapeDtypeStruct":
        """Describes a tensor; in a transform, as the function sees it."""
        return ShapeDtypeStruct(tensor.shape, tensor.dtype, tensor.device)


def _device(device: torch.device | str | None) -> torch.device:
    return torch.get_default_device() if device is None else torch.device(device)


def fake_tensors(values: Any) -> Any:
    """Replaces the descriptions of a pytree by fake tensors."""
    mode = FakeTensorMode()

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, ShapeDtypeStruct):
            return leaf
        with mode:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)

    return pytree.map_leaves(fake, values)
