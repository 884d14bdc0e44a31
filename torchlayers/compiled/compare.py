"""Whether two computations of the same are equal but for rounding."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# How many units of rounding, of the largest entry, sums in another order may be apart.
_UNITS = {torch.float64: 2**14, torch.float32: 2**14, torch.bfloat16: 2**4, torch.float16: 2**5}


def difference(ours: Tensor, theirs: Tensor, allowed: float = 0.0) -> str | None:
    """How two tensors differ by more than rounding and what else is allowed, or None."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return (
            f"is {tuple(theirs.shape)}, {theirs.dtype}, in place of {tuple(ours.shape)}, "
            f"{ours.dtype}"
        )
    if not (ours.is_floating_point() or ours.is_complex()):
        count = int((ours != theirs).sum())
        return f"differs in {count} of {ours.numel()} entries" if count else None
    exact, ours, theirs = ours.dtype, _wide(ours), _wide(theirs)
    finite = ours.isfinite()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not bool((same | (finite & theirs.isfinite())).all()):
        return "has other infinities or nans"
    scale = float(ours[finite].abs().max()) if bool(finite.any()) else 0.0
    real = exact.to_real() if exact.is_complex else exact
    bound = torch.finfo(real).eps * _UNITS.get(real, 2**4) * scale + allowed
    apart = torch.where(same, torch.zeros_like(ours), ours - theirs).abs()
    if bool((apart <= bound).all()):
        return None
    return f"is off by {float(apart.max()):.3g} where its largest entry is {scale:.3g}"


def sensitivity(
    run: Callable[[list[Tensor]], Sequence[Tensor]], inputs: Sequence[Tensor], outputs: list[Any]
) -> list[float]:
    """How far each output moves, at most, where every input is moved by some units of rounding.

    What would be zero without rounding has no scale but this one: a sum that cancels.
    """
    moved = []
    for tensor in inputs:
        if tensor.is_floating_point():
            signs = torch.where(torch.arange(tensor.numel(), device=tensor.device) % 2 == 0, 1, -1)
            eps = 4 * torch.finfo(tensor.dtype).eps
            tensor = tensor * (1 + eps * signs.reshape(tensor.shape)).to(tensor.dtype)
        moved.append(tensor)
    return [
        64 * float((_wide(other) - _wide(one)).abs().nan_to_num().max())
        if isinstance(one, Tensor) and one.numel() and (one.is_floating_point() or one.is_complex())
        else 0.0
        for one, other in zip(outputs, run(moved), strict=True)
    ]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
