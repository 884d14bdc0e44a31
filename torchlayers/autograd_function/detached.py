"""Calls a Function's backward or jvp that differentiates a detached copy of what it saved.

NOTE [Detached in a backward] in transforms/local_leaves.py. As for @once_differentiable, the
results pass through a Function that raises the error if they are differentiated.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import FakeTensor, functorch, is_grad_wrapper, is_wrapped
from torchlayers.transforms.local_leaves import LEAF, collected, has_tangent


def call(method: Callable[..., Any], name: str, ctx: Any, tensors: tuple[Any, ...]) -> Any:
    """Returns method(ctx, *tensors). `name` is that of the method, for the error."""
    before = collected.leaves
    leaves: list[Tensor] = []
    collected.leaves = leaves
    try:
        result = method(ctx, *tensors)
    finally:
        collected.leaves = before
    if not leaves:
        return result
    sources = _sources(leaves, [*_tensors_read(ctx, tensors)])
    results = pytree.as_tuple(result)
    outputs = [x for x in results if isinstance(x, Tensor)]
    if not sources or not outputs:
        return result
    undifferentiated: Any = _DetachedDerivative
    tied = iter(undifferentiated.apply(name, len(outputs), *outputs, *sources))
    return tuple(next(tied) if isinstance(x, Tensor) else x for x in results)


def _tensors_read(ctx: Any, tensors: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors that a method can detach: its arguments, the saved ones, attributes of ctx."""
    try:
        saved = ctx.saved_tensors
    except RuntimeError:  # the class has clear_saved_tensors_on_access
        saved = ()
    for x in pytree.leaves((tensors, saved, getattr(ctx, "__dict__", {}))):
        if isinstance(x, Tensor):
            yield x


def _sources(leaves: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Those of the tensors of which a leaf is a copy that a layer does not know to be one."""
    sources = []
    for leaf in leaves:
        copied = [x for x in tensors if x is not leaf and _C.share_memory(leaf, x)]
        if copied and not hasattr(leaf, LEAF):  # a tensor of the user's, as a module's weight
            continue
        if not copied:
            if hasattr(leaf, LEAF) and _differentiating_levels(leaf):
                continue  # x.clone() under no_grad, which keeps tangents
            copied = [x for x in tensors if x is not leaf and _has_values_of(leaf, x)]
            if not all(_is_lost(x, leaf) for x in copied):
                continue
        sources += [x for x in copied if _is_lost(x, leaf)]
    return sources


def _is_lost(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a level differentiates the tensor, and not the copy."""
    if not is_wrapped(copy):
        return bool(_differentiating_levels(tensor))
    return bool(_differentiating_levels(tensor) - _differentiating_levels(copy))


def _has_values_of(leaf: Tensor, tensor: Tensor) -> bool:
    """Whether the leaf has the tensor's values, which may have been converted."""
    if leaf.shape != tensor.shape or leaf.is_complex() != tensor.is_complex():
        return False
    one, other = _unwrapped(leaf), _unwrapped(tensor)
    if isinstance(one, FakeTensor) or isinstance(other, FakeTensor):
        return True
    if one.shape != other.shape or one.layout != other.layout or one.device != other.device:
        return False

    def is_same() -> bool:
        return bool((one != 0).any()) and torch.allclose(
            one, other.to(one.dtype), rtol=0, atol=0, equal_nan=True
        )

    with torch.no_grad():
        return bool(_C.at_level(0, is_same))


def _unwrapped(tensor: Tensor) -> Tensor:
    while is_wrapped(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _differentiating_levels(tensor: Tensor) -> set[int]:
    """The levels that track the tensor as a result; 0 is that of plain autograd."""
    top = _C.top()
    is_leaf_of_method = tensor.grad_fn is None and hasattr(tensor, LEAF)
    is_recorded = tensor.requires_grad and torch.is_grad_enabled() and not is_leaf_of_method
    if top is None:
        return {0} if is_recorded else set()
    level, levels = top[1], set()
    if functorch.maybe_get_level(tensor) == level:
        if is_grad_wrapper(tensor) and (is_recorded or has_tangent(tensor)):
            levels.add(level)
        tensor = functorch.get_unwrapped(tensor)
    with _C.Below():
        return levels | _differentiating_levels(tensor)


class _DetachedDerivative(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, ctx.count = inputs[:2]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if any(ctx.needs_input_grad[2 + ctx.count :]):
            _refuse(ctx.name)
        sources = len(ctx.needs_input_grad) - 2 - ctx.count
        return None, None, *cotangents, *(None,) * sources

    @staticmethod
    def jvp(ctx: Any, name: None, count: None, *tangents: Any) -> Any:
        if any(tangent is not None for tangent in tangents[ctx.count :]):
            _refuse(ctx.name)
        return tangents[: ctx.count]


def _refuse(name: str) -> None:
    raise FunctionError(
        f"torchlayers: {name} calls torch.autograd.grad with respect to a detached copy of a "
        "tensor that it reads, so its result can't be differentiated with respect to that tensor. "
        "Write x.view_as(x).requires_grad_() instead of x.detach().requires_grad_(), or use "
        "torchlayers.grad or vjp there, which need no leaf."
    )
