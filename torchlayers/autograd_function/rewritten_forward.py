"""Merges a Function's forward and setup_context into a forward that takes ctx."""

from collections.abc import Callable
from typing import Any


def autograd_function_forward_rewritten(
    original_forward: Callable[..., Any], original_setup_context: Callable[..., Any]
) -> Callable[..., Any]:
    """Combines a forward without ctx and its setup_context into a forward that takes ctx.

    Args:
        original_forward: takes the operands.
        original_setup_context: takes ctx, the tuple of positional operands, and the output.
    Returns:
        A function ``(ctx, *operands, **options)`` that runs the forward, then setup_context, and
        returns the output.
    Example:
        >>> class Cube(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return x**3
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(inputs[0])
        >>> forward = autograd_function_forward_rewritten(Cube.forward, Cube.setup_context)
        >>> class Ctx:
        ...     def save_for_backward(self, *tensors):
        ...         self.saved_tensors = tensors
        >>> ctx = Ctx()
        >>> forward(ctx, torch.tensor(2.0)), ctx.saved_tensors
        (tensor(8.), (tensor(2.),))

    Source: the function of the same name in torch.func.
    """

    def new_forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        output = original_forward(*args, **kwargs)
        original_setup_context(ctx, args, output)
        return output

    return new_forward
