"""The grad and jvp rule: records a Function in the autograd graph of one level.

For each Function another is generated that works on tensors wrapped at the top layer's level. Its
forward unwraps them, applies the Function on the layers below, and wraps the results; its
setup_context, backward and jvp call the user's. Autograd records it at this level only.
"""

from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function import generated_classes, methods
from torchlayers.autograd_function.context import (
    HAS_CONSTANTS,
    MARK,
    ConstantsContext,
    is_constant_here,
    set_own_field,
)
from torchlayers.autograd_function.custom_function_call import Function, custom_function_call
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import functorch
from torchlayers.random.seeded import JvpDraws


@custom_function_call.py_impl(functorch.TransformType.Grad)
@custom_function_call.py_impl(functorch.TransformType.Jvp)
def _on_one_level(interpreter: Any, function: Function, *operands: Any) -> Any:
    lifted = pytree.map_all_tensors(_C.lift, operands)
    one_level = generated_classes.generate_cached(function, "single level", _generate)
    with _C.OneLevel():
        try:
            return one_level.apply(*lifted)
        except RuntimeError as error:
            methods.explain_tangents(function, error)
            raise


# The base of torch.autograd.Function whose apply does not look for transforms.
_SingleLevelFunction: Any = torch.autograd.Function.__mro__[1]


def _generate(function: Function) -> Any:
    backward_of_function = methods.backward_of(function)
    jvp_of_function = methods.jvp_of(function)
    set_up = methods.setup_context_of(function)
    name = generated_classes.name_of(function)

    def forward(*operands: Any) -> Any:
        top = _C.top()
        assert top is not None
        level = top[1]
        values = pytree.map_all_tensors(
            lambda operand: _C.value_of_operand(operand, level), operands
        )
        with _C.Below():
            try:
                outputs = custom_function_call.on_top(function, *values)
            except RuntimeError as error:
                methods.explain_captured(function, error)
                raise
        return pytree.map_outputs(_C.wrap_returned, outputs, values, operands)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        set_up(ctx, inputs, output)
        if any(map(is_constant_here, inputs)):
            set_own_field(ctx, HAS_CONSTANTS, MARK)
        for dirty in ctx.dirty_tensors or ():
            if isinstance(dirty, Tensor) and _C.is_captured(dirty):
                raise FunctionError(
                    f"torchlayers: {name} writes to a tensor (mark_dirty) from "
                    "outside the transform: its gradient would be silently wrong. Pass it to the "
                    "transformed function as an argument, or clone it."
                )

    def backward(ctx: Any, *grads: Any) -> Any:
        if hasattr(ctx, HAS_CONSTANTS):
            ctx = ConstantsContext(ctx)
        with _C.RunsBackward():
            return backward_of_function(ctx, *grads)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        with _C.RunsJvp(), JvpDraws():  # NOTE [A jvp is differentiated too]
            return jvp_of_function(ctx, *tangents)

    return generated_classes.function_class(
        _SingleLevelFunction,
        f"{function.__name__}Generated",
        function,
        forward=forward,
        setup_context=setup_context,
        backward=backward,
        jvp=jvp,
    )
