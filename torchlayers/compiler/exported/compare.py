"""Compares the results of a function with those of its exported program."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import TransformError

# The largest difference from rounding, as a part of the largest result, by dtype.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def compare(api: str, name: str, expected: Any, got: Any) -> None:
    """Raises an error if the results differ by more than rounding.

    Raises:
        TransformError: they differ.
    """
    pairs = zip(pytree.leaves(expected), pytree.leaves(got), strict=True)
    for i, (one, other) in enumerate(pairs):
        if isinstance(one, Tensor):
            compare_tensors(api, name, f"leaf {i} of the result", one, other)


def compare_all(
    api: str, name: str, names: Sequence[str], expected: Sequence[Tensor], got: Sequence[Tensor]
) -> None:
    """As :func:`compare`, for lists of tensors with names."""
    for result, one, other in zip(names, expected, got, strict=True):
        compare_tensors(api, name, result, one, other)


def compare_tensors(api: str, name: str, result: str, one: Tensor, other: Tensor) -> None:
    one, other = one.detach(), other.detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        raise TransformError(
            f"torchlayers: {api}: {result} of {name} has shape {tuple(other.shape)} and dtype "
            f"{other.dtype} where it should have {tuple(one.shape)} and {one.dtype}. Report it."
        )
    if not one.numel():
        return
    if not (one.is_floating_point() or one.is_complex()):
        if not torch.equal(one, other):
            raise TransformError(f"torchlayers: {api}: {result} of {name} differs. Report it.")
        return
    one, other = (
        torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (one, other)
    )
    rounding = _ROUNDING[one.dtype]
    finite = one[one.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    if not torch.allclose(one, other, rtol=0, atol=rounding * scale, equal_nan=True):
        difference = (one - other).abs().max().item()
        raise TransformError(
            f"torchlayers: {api}: {result} of {name} differs by {difference:.1e}, more than "
            "rounding. check=False exports it nevertheless."
        )
