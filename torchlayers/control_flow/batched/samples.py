"""Moves the samples of a batch into a visible dimension, selects some, and batches them again.

NOTE [Samples of their own]
With a batched predicate, each branch or loop body runs under a vmap entered for it, over the
samples that take it: those of one vmap, or of several nested ones flattened into one dimension.
This vmap is on top of the stack, above layers that may differentiate the operands. So moving the
samples into a visible dimension is an operator whose derivative batches them again (revealed,
hidden). Tensors that a branch captures are moved at their first use by one of the branch's
operators (subset_vmap.py). So a branch never sees a tensor with samples other than those it runs
on.

This vmap has randomness "same": its samples share one draw, which the batch's vmaps then make as
their own randomness says, and each sample gets its row of that. Draws for each sample here would
also differ between samples of a vmap with randomness "same" that is nested with one of "different".
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import TransformError, untracked_capture
from torchlayers.core.torch_private import (
    functorch,
    is_batched_wrapper,
    is_grad_wrapper,
    is_wrapped,
    stack_depth,
    torch_c,
    torch_private,
)

_ops: Any = torch.ops.torchlayers  # defined in csrc/rules/collectives/axes.cpp

# Disables function modes for operators that torchlayers calls internally.
without_function_modes: Any = torch.DisableTorchFunction


def unbatch_all(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Returns the underlying tensor, detached, and the levels at which x is batched.

    The batch dimensions come first, outermost level first. Compute with the result only inside
    ``without_function_modes()``: at a grad's level, its results would look differentiable.
    """
    with without_function_modes():
        return _unbatch_all(x)


def _unbatch_all(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    x = _C.shown(x)
    if is_batched_wrapper(x):
        level, dim = functorch.maybe_get_level(x), functorch.maybe_get_bdim(x)
        value, levels = _unbatch_all(functorch.get_unwrapped(x))
        if dim != 0:
            value = value.movedim(len(levels) + dim, len(levels))
        return value, (*levels, level)
    if is_grad_wrapper(x):
        return _unbatch_all(functorch.get_unwrapped(x))
    if torch_private._is_functional_tensor(x):
        torch_private._functionalize_sync(x)
        return _unbatch_all(functorch.get_unwrapped(x))
    return x.detach() if x.requires_grad else x, ()


def base_tensor(x: Tensor) -> Tensor:
    """Returns the tensor below all wrappers."""
    if is_wrapped(x) or torch_private._is_functional_tensor(x):
        return base_tensor(functorch.get_unwrapped(x))
    return x


def base_values(x: Tensor) -> Any:
    """Returns the values of the underlying tensor as nested lists, through any wrappers."""
    with (
        without_function_modes(),
        torch_c._DisableFuncTorch(),
    ):  # copying from another device is an operator
        return _unbatch_all(x)[0].tolist()


def depends_on_levels(x: Tensor, levels: int, below: int) -> bool:
    """Whether x, or a derivative by it, differs between samples of these levels (a bit mask).

    x is taken to come from below the level ``below``, unless it is batched there: then it belongs
    to the samples of that level.
    """
    if _C.concerns(_C.shown(x), levels, below):
        return True
    # A functionalize wrapper hides the levels below it.
    return _C.any_functionalize() and any(levels >> level & 1 for level in unbatch_all(x)[1])


class SampleRows(NamedTuple):
    """Samples along the first dimension, about to be batched by the vmap that is entered next."""

    values: Tensor

    def shown(self) -> Tensor:
        return _C.add_batch_dim(self.values, 0)


class SampleBatch(NamedTuple):
    """The samples of one or more nested vmaps.

    Args:
        levels: the levels of the vmaps, outermost first.
        sizes: their batch sizes.
        number: the total number of samples.
        mask: the levels as a bit mask.
        token: a tensor that is batched at each level.
    """

    levels: tuple[int, ...]
    sizes: tuple[int, ...]
    number: int
    mask: int
    token: Tensor

    def unbatch(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """All samples of x, or those in index, along a new first dimension."""
        rows = unbatch(x, self.token, self.levels).flatten(0, len(self.levels) - 1)
        return rows if index is None else rows.index_select(0, index)

    def rows(self, x: Any, index: Tensor | None = None) -> Any:
        """x as SampleRows if it differs between samples, else x unchanged."""
        if isinstance(x, Tensor) and depends_on_levels(x, self.mask, stack_depth() + 1):
            return SampleRows(self.unbatch(x, index))
        return x

    def rebatch(self, rows: Tensor) -> Tensor:
        """The inverse of reveal: batches rows at the levels again."""
        return rebatch(rows.view(*self.sizes, *rows.shape[1:]), self.token, self.levels)


def batch_of(x: Tensor, values: Tensor, levels: tuple[int, ...]) -> SampleBatch:
    """Returns the batch of a batched tensor x, given what unbatch_all returned for it."""
    sizes = tuple(values.shape[: len(levels)])
    mask = sum(1 << level for level in levels)
    return SampleBatch(levels, sizes, math.prod(sizes), mask, x)


def unbatch(x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """x with the samples of these levels in its first dimensions."""
    if not _C.is_plain_stack():  # torch.func's layers don't support our operators
        return _move_batch_dims(x, token, levels, True)
    for level in reversed(levels):
        x = _ops.samples_to_dim.default(x, 0, f"#{level}")
    return x


def rebatch(rows: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """rows, whose first dimensions are samples, batched at these levels."""
    if not _C.is_plain_stack():  # torch.func's layers don't support our operators
        return _move_batch_dims(rows, token, levels, False)
    for place, level in reversed([*enumerate(levels)]):
        rows = _ops.dim_to_samples.default(rows, place, f"#{level}")
    return rows


class _MoveBatchDims(torch.autograd.Function):
    """Moves samples between levels and dimensions, also through torch.func's layers.

    Its vmap rule does the work, one level at a time. The token is an input because the vmap rule is
    skipped if no input is batched. ``unbatches`` says which way the samples are moved.
    """

    @staticmethod
    def forward(x: Tensor, token: Tensor, levels: tuple[int, ...], unbatches: bool) -> Tensor:
        raise TransformError(
            "torchlayers: control flow on a batched predicate was still in progress when the vmap "
            "that batched it ended. Return its results from the function that vmap runs."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, token, ctx.levels, ctx.unbatches = inputs
        ctx.save_for_backward(token)
        ctx.save_for_forward(token)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        moved = _move_batch_dims(g, *ctx.saved_tensors, ctx.levels, not ctx.unbatches)
        return moved, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Any:
        return _move_batch_dims(t, *ctx.saved_tensors, ctx.levels, ctx.unbatches)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Tensor,
        token: Tensor,
        levels: tuple[int, ...],
        unbatches: bool,
    ) -> Any:
        x_dim, token_dim, *_ = in_dims
        token = token if token_dim is None else token.select(token_dim, 0)
        if stack_depth() + 1 == levels[-1]:
            if unbatches:
                x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
            elif x_dim is not None:
                raise TransformError(
                    untracked_capture("control flow on a batched predicate", "a batched tensor")
                )
            rest = levels[:-1]
            moved = _move_batch_dims(x, token, rest, unbatches) if rest else x.clone()
            return moved, None if unbatches else 0
        if x_dim is None:
            return _move_batch_dims(x, token, levels, unbatches), None
        before, after = (0, len(levels)) if unbatches else (len(levels), 0)
        return _move_batch_dims(x.movedim(x_dim, before), token, levels, unbatches), after


_move_batch_dims: Any = _MoveBatchDims.apply


def first_true(flags: Tensor) -> int:
    """Returns the index of the first true flag."""
    return base_values(flags.view(torch.uint8).argmax())


def broadcast_flags(flags: Tensor, rows: Tensor) -> Tensor:
    """Reshapes flags, one for each row, to broadcast with the rows."""
    return flags.view(-1, *(1,) * (rows.dim() - 1))
