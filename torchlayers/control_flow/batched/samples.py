"""The samples of a batch: brought into sight, picked, and put back.

NOTE [Samples of their own]
Where a predicate is batched, what it decides runs under a vmap that is entered for it, on the
samples that take it: those of one vmap, or of several that nest, in a row. It sits on top of
the stack, above layers that may differentiate the operands, so bringing the samples into sight
is an operator of its own, whose derivative hides them again (revealed, hidden). What a branch
captures is brought over where it is first used, which the branch's operators tell (subset_vmap.py).
So a branch never meets a tensor of which it has other samples than it runs on.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import TransformError

_torch: Any = torch  # what it keeps for its own use has no types
_functorch: Any = _torch._C._functorch
_depth = _functorch.get_dynamic_layer_stack_depth
_ops: Any = torch.ops.torchlayers  # of C++, csrc/rules/axes.cpp

# While it lives, no mode looks at operators: they are ours.
quietly: Any = _torch._C.DisableTorchFunction


def in_sight(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor in memory, without a derivative, and the levels at which it was batched.

    Their dimensions are in front, the outermost first. What is made of it is to be made quietly: at
    a grad's level it would look like something to differentiate.
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
    """The tensor in memory."""
    if _functorch.is_batchedtensor(x) or _functorch.is_gradtrackingtensor(x):
        return base_of(_functorch.get_unwrapped(x))
    if _functorch.is_functionaltensor(x):
        return base_of(_torch._from_functional_tensor(x))
    return x


def numbers(x: Tensor) -> Any:
    """The numbers in memory, as lists: those of what a layer has made of a plain tensor too."""
    with quietly(), _torch._C._DisableFuncTorch():  # another device's are copied by an operator
        return _in_sight(x)[0].tolist()


def is_at(x: Tensor, levels: int, below: int) -> bool:
    """Whether samples of these levels, a bit each, have their own of it, or a derivative by it.

    x comes from below a level, unless it is batched there: then it belongs to its samples.
    """
    if _C.concerns(_C.shown(x), levels, below):
        return True
    # A functionalize's wrapper hides the levels below it.
    return _C.any_functionalize() and any(levels >> level & 1 for level in in_sight(x)[1])


class Rows(NamedTuple):
    """Samples in a row, on their way into the vmap that is entered next."""

    values: Tensor

    def shown(self) -> Tensor:
        return _C.add_batch_dim(self.values, 0)


class Batch(NamedTuple):
    """The samples of these levels.

    Args:
        number: how many there are.
        mask: the levels, a bit each.
        token: a tensor that is batched at each of them.
        randomness: of a vmap of these samples.
    """

    levels: tuple[int, ...]
    sizes: tuple[int, ...]
    number: int
    mask: int
    token: Tensor
    randomness: str

    def reveal(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """All samples of x in a row, or those that the index names, in a first dimension."""
        rows = revealed(x, self.token, self.levels).flatten(0, len(self.levels) - 1)
        return rows if index is None else rows.index_select(0, index)

    def rows(self, x: Any, index: Tensor | None = None) -> Any:
        """x, or its samples in a row where it has some of its own."""
        if isinstance(x, Tensor) and is_at(x, self.mask, _depth() + 1):
            return Rows(self.reveal(x, index))
        return x

    def hide(self, rows: Tensor) -> Tensor:
        """What reveal gave, batched again."""
        return hidden(rows.view(*self.sizes, *rows.shape[1:]), self.token, self.levels)


def batch_of(x: Tensor, values: Tensor, levels: tuple[int, ...]) -> Batch:
    """The batch of a tensor that in_sight has found to be batched."""
    sizes = tuple(values.shape[: len(levels)])
    mask = sum(1 << level for level in levels)
    return Batch(levels, sizes, math.prod(sizes), mask, x, _randomness())


def _randomness() -> str:
    """Of a vmap of samples: numbers that differ are drawn at the levels' own vmaps.

    Those that it draws too, for operators that are batched by it, are sorted out in sample.
    """
    layers = _C.current_stack()
    is_any = any(layer and layer[2].get("randomness") == "different" for layer in layers)
    return "different" if is_any else "same"


def revealed(x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """x with the samples of these levels in its first dimensions."""
    if not _C.is_plain_stack():  # operators of ours know no way through others' layers
        return _reveal(x, token, levels)  # type: ignore[no-any-return]
    for level in reversed(levels):
        x = _ops.samples_to_dim.default(x, 0, f"#{level}")
    return x


def hidden(rows: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
    """rows, whose first dimensions are samples, batched at these levels."""
    if not _C.is_plain_stack():  # operators of ours know no way through others' layers
        return _hide(rows, token, levels)  # type: ignore[no-any-return]
    for place, level in reversed([*enumerate(levels)]):
        rows = _ops.dim_to_samples.default(rows, place, f"#{level}")
    return rows


class _Moved(torch.autograd.Function):
    """Samples between a level and a dimension, through layers of torch.func's too.

    Its rule of vmap does it, from level to level. It asks for the token, as the rule of a vmap is
    left out where nothing is batched.
    """

    inverse: "type[_Moved]"

    @staticmethod
    def forward(x: Tensor, token: Tensor, levels: tuple[int, ...]) -> Tensor:
        raise TransformError(
            "torchlayers: control flow on a batched predicate ended outside the vmap that batched "
            "it. Return its results from the function that vmap runs."
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
                    "a batched tensor from outside it in a way that can't be seen (an extension in "
                    "C++, or a Function that captures it). Pass it as an operand."
                )
            rest = levels[:-1]
            return (_hide(x, token, rest) if rest else x.clone()), 0
        if x_dim is None:
            return _hide(x, token, levels), None
        return _hide(x.movedim(x_dim, len(levels)), token, levels), 0


_reveal: Any = _Revealed.apply
_hide: Any = _Hidden.apply


def first_of(flags: Tensor) -> int:
    """The first that is true."""
    return numbers(flags.view(torch.uint8).argmax())  # type: ignore[no-any-return]


def beside(flags: Tensor, rows: Tensor) -> Tensor:
    """A flag for each of the rows, to be broadcast with them."""
    return flags.view(-1, *(1,) * (rows.dim() - 1))
