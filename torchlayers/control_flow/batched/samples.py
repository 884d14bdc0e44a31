"""Moves the samples of a batch into a visible dimension, selects some, and batches them again.

NOTE [Samples of their own]
With a batched predicate, each branch or loop body runs under a vmap entered for it, over the
samples that take it: those of one vmap, or of several nested ones flattened into one dimension.
This vmap is on top of the stack, above layers that may differentiate the operands. So moving the
samples into a visible dimension is an operator whose derivative batches them again (revealed,
hidden). Tensors that a branch captures are moved at their first use by one of the branch's
operators (subset_vmap.py). So a branch never sees a tensor with samples other than those it runs
on.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import TransformError

_torch: Any = torch  # its private names have no type stubs
_functorch: Any = _torch._C._functorch
_depth = _functorch.get_dynamic_layer_stack_depth
_ops: Any = torch.ops.torchlayers  # defined in csrc/rules/axes.cpp

# Disables function modes for operators that torchlayers calls internally.
quietly: Any = _torch._C.DisableTorchFunction


def in_sight(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Returns the underlying tensor, detached, and the levels at which x is batched.

    The batch dimensions come first, outermost level first. Compute with the result only inside
    ``quietly()``: at a grad's level, its results would look differentiable.
    """
    with quietly():
        return _in_sight(x)


def _in_sight(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    x = _C.shown(x)
    if _functorch.is_batchedtensor(x):
        level, dim = _functorch.maybe_get_level(x), _functorch.maybe_get_bdim(x)
        value, levels = _in_sight(_functorch.get_unwrapped(x))
        if dim != 0:
            value = value.movedim(len(levels) + dim, len(levels))
        return value, (*levels, level)
    if _functorch.is_gradtrackingtensor(x):
        return _in_sight(_functorch.get_unwrapped(x))
    if _functorch.is_functionaltensor(x):
        _torch._sync(x)
        return _in_sight(_torch._from_functional_tensor(x))
    return x.detach() if x.requires_grad else x, ()


def base_of(x: Tensor) -> Tensor:
    """Returns the tensor below all wrappers."""
    if _functorch.is_batchedtensor(x) or _functorch.is_gradtrackingtensor(x):
        return base_of(_functorch.get_unwrapped(x))
    if _functorch.is_functionaltensor(x):
        return base_of(_torch._from_functional_tensor(x))
    return x


def numbers(x: Tensor) -> Any:
    """Returns the values of the underlying tensor as nested lists, through any wrappers."""
    with quietly(), _torch._C._DisableFuncTorch():  # copying from another device is an operator
        return _in_sight(x)[0].tolist()


def is_at(x: Tensor, levels: int, below: int) -> bool:
    """Whether x, or a derivative by it, differs between samples of these levels (a bit mask).

    x is taken to come from below the level ``below``, unless it is batched there: then it belongs
    to the samples of that level.
    """
    if _C.concerns(_C.shown(x), levels, below):
        return True
    # A functionalize wrapper hides the levels below it.
    return _C.any_functionalize() and any(levels >> level & 1 for level in in_sight(x)[1])


class Rows(NamedTuple):
    """Samples along the first dimension, about to be batched by the vmap that is entered next."""

    values: Tensor

    def shown(self) -> Tensor:
        return _C.add_batch_dim(self.values, 0)


class Batch(NamedTuple):
    """The samples of one or more nested vmaps.

    Args:
        levels: the levels of the vmaps, outermost first.
        sizes: their batch sizes.
        number: the total number of samples.
        mask: the levels as a bit mask.
        token: a tensor that is batched at each level.
        randomness: the randomness mode for a vmap over these samples.
    """

    levels: tuple[int, ...]
    sizes: tuple[int, ...]
    number: int
    mask: int
    token: Tensor
    randomness: str

    def reveal(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """All samples of x, or those in index, along a new first dimension."""
        rows = revealed(x, self.token, self.levels).flatten(0, len(self.levels) - 1)
        return rows if index is None else rows.index_select(0, index)

    def rows(self, x: Any, index: Tensor | None = None) -> Any:
        """x as Rows if it differs between samples, else x unchanged."""
        if isinstance(x, Tensor) and is_at(x, self.mask, _depth() + 1):
            return Rows(self.reveal(x, index))
        return x

    def hide(self, rows: Tensor) -> Tensor:
        """The inverse of reveal: batches rows at the levels again."""
        return hidden(rows.view(*self.sizes, *rows.shape[1:]), self.token, self.levels)


def batch_of(x: Tensor, values: Tensor, levels: tuple[int, ...]) -> Batch:
    """Returns the batch of a batched tensor x, given what in_sight returned for it."""
    sizes = tuple(values.shape[: len(levels)])
    mask = sum(1 << level for level in levels)
    return Batch(levels, sizes, math.prod(sizes), mask, x, _randomness())


def _randomness() -> str:
    """Returns the randomness mode of a vmap over samples: "different" if any vmap uses that.

    Such numbers are drawn by the levels' own vmaps. If the new vmap draws too, for operators that
    it batches, ``Inside.sample`` selects from the result.
    """
    layers = _C.current_stack()
    is_any = any(layer and layer[2].get("randomness") == "different" for layer in layers)
    return "different" if is_any else "same"


def revealed(x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """x with the samples of these levels in its first dimensions."""
    if not _C.is_plain_stack():  # torch.func's layers don't support our operators
        return _reveal(x, token, levels)  # type: ignore[no-any-return]
    for level in reversed(levels):
        x = _ops.samples_to_dim.default(x, 0, f"#{level}")
    return x


def hidden(rows: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """rows, whose first dimensions are samples, batched at these levels."""
    if not _C.is_plain_stack():  # torch.func's layers don't support our operators
        return _hide(rows, token, levels)  # type: ignore[no-any-return]
    for place, level in reversed([*enumerate(levels)]):
        rows = _ops.dim_to_samples.default(rows, place, f"#{level}")
    return rows


class _Moved(torch.autograd.Function):
    """Moves samples between a level and a dimension, also through torch.func's layers.

    Its vmap rule does the work, one level at a time. The token is an input because the vmap rule is
    skipped if no input is batched.
    """

    inverse: "type[_Moved]"

    @staticmethod
    def forward(x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
        raise TransformError(
            "torchlayers: control flow on a batched predicate was still in progress when the vmap "
            "that batched it ended. Return its results from the function that vmap runs."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, token, ctx.levels = inputs
        ctx.save_for_backward(token)
        ctx.save_for_forward(token)


class _Revealed(_Moved):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _hide(g, *ctx.saved_tensors, ctx.levels), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Any:
        return _reveal(t, *ctx.saved_tensors, ctx.levels)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Any:
        x_dim, token_dim, _ = in_dims
        token = token if token_dim is None else token.select(token_dim, 0)
        if _depth() + 1 == levels[-1]:
            x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
            rest = levels[:-1]
            return (_reveal(x, token, rest) if rest else x.clone()), None
        if x_dim is None:
            return _reveal(x, token, levels), None
        return _reveal(x.movedim(x_dim, 0), token, levels), len(levels)


class _Hidden(_Moved):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _reveal(g, *ctx.saved_tensors, ctx.levels), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Any:
        return _hide(t, *ctx.saved_tensors, ctx.levels)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Any:
        x_dim, token_dim, _ = in_dims
        token = token if token_dim is None else token.select(token_dim, 0)
        if _depth() + 1 == levels[-1]:
            if x_dim is not None:
                raise TransformError(
                    "torchlayers: control flow on a batched predicate: a branch or loop body used "
                    "a batched tensor from outside it in a way that torchlayers can't detect (a "
                    "C++ extension, or an autograd.Function that captures it). Pass it as an "
                    "operand."
                )
            rest = levels[:-1]
            return (_hide(x, token, rest) if rest else x.clone()), 0
        if x_dim is None:
            return _hide(x, token, levels), None
        return _hide(x.movedim(x_dim, len(levels)), token, levels), 0


_reveal: Any = _Revealed.apply
_hide: Any = _Hidden.apply


def first_of(flags: Tensor) -> int:
    """Returns the index of the first true flag."""
    return numbers(flags.view(torch.uint8).argmax())  # type: ignore[no-any-return]


def beside(flags: Tensor, rows: Tensor) -> Tensor:
    """Reshapes flags, one for each row, to broadcast with the rows."""
    return flags.view(-1, *(1,) * (rows.dim() - 1))
