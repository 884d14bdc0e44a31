"""Functions whose forward draws random numbers under seeded or a keyed vmap.

A Function is applied below the layer, so the layer would not see the random operators in its
forward. Another Function is generated, which takes a key as an additional last operand and runs
the forward inside seeded.
"""

from typing import Any

import torch

from torchlayers import _C
from torchlayers.autograd_function import generated_classes, methods
from torchlayers.autograd_function.context import HiddenLastInputContext
from torchlayers.autograd_function.custom_function_call import Function
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError


def may_draw(function: Function) -> bool:
    """False for Functions of control flow, which are given what they draw as operands."""
    return bool(getattr(function, "draws_by_key", True))


def with_key_operand(function: Function) -> Function:
    """Returns the Function with a key as an additional last operand."""
    generated: Function = generated_classes.generate_cached(function, "drawing", _generate)
    return generated


def _generate(function: Function) -> Function:
    backward_of_one, jvp_of_one = methods.backward_of(function), methods.jvp_of(function)
    set_up = methods.setup_context_of(function)

    def forward(*operands: Any) -> Any:
        *inputs, key = operands
        with _C.seeded_entry(key):
            return function.forward(*inputs)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        set_up(HiddenLastInputContext(ctx), inputs[:-1], outputs)

    def backward(ctx: Any, *grads: Any) -> Any:
        gradients = backward_of_one(HiddenLastInputContext(ctx), *grads)
        return (*pytree.as_tuple(gradients), None)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        return jvp_of_one(HiddenLastInputContext(ctx), *tangents[:-1])

    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        *inputs, key = operands
        if in_dims[-1] is not None:
            raise FunctionError(
                f"torchlayers: {generated_classes.name_of(function)} has a vmap staticmethod, and "
                "is applied where each sample draws with its own key. Set generate_vmap_rule = "
                "True instead, or draw the numbers outside and pass them as an operand."
            )
        with _C.seeded_entry(key):
            return function.vmap(info, in_dims[:-1], *inputs)  # type: ignore[no-untyped-call]

    return generated_classes.function_class(
        torch.autograd.Function,
        function.__name__,
        function,
        forward=forward,
        setup_context=setup_context,
        backward=backward,
        jvp=jvp,
        vmap=vmap if methods.has_vmap(function) else None,
    )
