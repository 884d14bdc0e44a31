"""Gives parts a memory layout that suits the operators which depend on it.

as_strided counts elements in memory, and view merges dimensions that are adjacent there. A part
that has the shape of its tensor may still have other strides, or another offset.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.errors import RuleError
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import dispatch_modes

_VIEWS = {aten.as_strided.default, aten.as_strided_copy.default}
_COUNT_ELEMENTS = {*_VIEWS, aten.as_strided_scatter.default}
DEPEND_ON_LAYOUT = {*_COUNT_ELEMENTS, aten.view.default, aten.view_as_complex.default}


def laid_out(op: Any, value: Tensor, part: Any, args: Sequence[Any]) -> Any:
    """The part in a memory layout in which op does to it what it does to the value.

    Args:
        op: one of DEPEND_ON_LAYOUT.
        value: the tensor that op is called with.
        part: the part of it to call op with instead.
        args: op's other arguments.
    Raises:
        RuleError: op counts elements in memory, and the part is not a tensor of the same shape, or
            op shows elements that are not the value's own.
    """
    if not isinstance(part, Tensor) or part.shape != value.shape:
        if op not in _COUNT_ELEMENTS:
            return part
        got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
        raise RuleError(
            f"torchlayers: {op} counts elements in memory. The part of a tensor of shape "
            f"{tuple(value.shape)} has to have the same shape for that, got {got}. Register a rule "
            f"for {op}."
        )
    if op in _VIEWS:
        _check_shows_own(op, value, args)
    if _are_alike(part, value):
        return part
    if op in _COUNT_ELEMENTS:
        return _placed(part, value.shape, value.stride(), value.storage_offset())
    return part.clone(memory_format=torch.contiguous_format)


def _check_shows_own(op: Any, value: Tensor, view: Sequence[Any]) -> None:
    strides = value.stride()
    # Of elements that share memory, one is enough.
    pairs = zip(value.shape, strides, strict=True)
    sizes = [size if step else min(size, 1) for size, step in pairs]
    with dispatch_modes._disable_current_modes():  # one that records can't read the answer
        shown = _placed(torch.ones(sizes, dtype=torch.bool), sizes, strides, value.storage_offset())
        shows_own = bool(shown.as_strided(*view).all())
    if not shows_own:
        raise RuleError(
            f"torchlayers: {op} with sizes {list(view[0])} and strides {list(view[1])} shows "
            f"elements that a tensor of shape {tuple(value.shape)} and strides {strides} does not "
            "have, and of which its layer knows nothing."
        )


def _placed(part: Tensor, sizes: Sequence[int], strides: Sequence[int], offset: Any) -> Tensor:
    """A copy of the part in zeroed memory, with that layout."""
    if not part.numel():
        return part
    reach = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    memory = part.new_zeros(offset + reach + 1)
    return memory.as_strided_scatter(part, sizes, strides, offset).as_strided(
        sizes, strides, offset
    )


def _are_alike(x: Tensor, y: Tensor) -> bool:
    """Whether the elements of two tensors of the same shape are at the same places."""
    if x.storage_offset() != y.storage_offset():
        return False
    return x.stride() == y.stride() or _steps(x) == _steps(y)


def _steps(tensor: Tensor) -> list[int]:
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
