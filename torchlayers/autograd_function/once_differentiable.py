"""Calls a backward that is decorated with @once_differentiable.

NOTE [Differentiated once]
torch's decorator disables gradient recording in the backward, and makes the gradients raise an
error when they are differentiated. It does so for the top level only: to the layers below,
unrecorded gradients would be constants, with a second derivative of zero and no error. So here the
gradients pass through a Function that raises the error, at every level that tracks their inputs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import functorch, is_wrapped

_WRAPPER: Any = once_differentiable(lambda ctx: None).__code__


def call(backward: Callable[..., Any], name: str, ctx: Any, grads: tuple[Any, ...]) -> Any:
    """Returns backward(ctx, *grads). `name` is the Function's name, for the error."""
    result = backward(ctx, *grads)
    if getattr(backward, "__code__", None) is not _WRAPPER:
        return result
    sources = [
        value
        for value in (*grads, *ctx.saved_tensors)
        if isinstance(value, Tensor) and _is_tracked_below(value)
    ]
    results = pytree.as_tuple(result)
    tensors = [value for value in results if isinstance(value, Tensor)]
    if not sources or not tensors:
        return result
    once: Any = _OnceDifferentiableBackward
    tied = iter(once.apply(name, len(tensors), *tensors, *sources))
    return tuple(next(tied) if isinstance(value, Tensor) else value for value in results)


def _is_tracked_below(tensor: Tensor) -> bool:
    """Whether a layer below the top one, or plain autograd, tracks the tensor's gradient."""
    while is_wrapped(tensor):
        tensor = functorch.get_unwrapped(tensor)
        if tensor.requires_grad:
            return True
    return False


class _OnceDifferentiableBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, ctx.count = inputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise FunctionError(
            f"torchlayers: {ctx.name}.backward is marked @once_differentiable, so it can't be "
            "differentiated. Remove the decorator if the method consists of differentiable "
            "operators."
        )

    @staticmethod
    def jvp(ctx: Any, name: None, count: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        return tangents[: ctx.count]
