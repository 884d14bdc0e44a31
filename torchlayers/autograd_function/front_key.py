"""Entry point of Functions: rules for our front key, on torch's custom_function_call and ours."""

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointFunction, checkpoint

from torchlayers.autograd_function import dirichlet, old_style, old_style_dispatch
from torchlayers.autograd_function.apply import torch_template
from torchlayers.autograd_function.custom_function_call import (
    FRONT,
    Function,
    check_by_position,
    custom_function_call,
)
from torchlayers.core import pytree, tracing_state
from torchlayers.core.operator_rules.function_rules import resumed
from torchlayers.core.operators import MissingOperator, higher_order
from torchlayers.core.torch_private import without_ended_wrapper
from torchlayers.distributed import dtensor_calls


@tracing_state.uncompiled
def _from_torch_funcs(function: Function, *operands: Any, **options: Any) -> Any:
    check_by_position(function, options)
    with resumed():
        return _apply(function, operands)


def _apply(function: Function, operands: tuple[Any, ...]) -> Any:
    alive = pytree.map_all_tensors(without_ended_wrapper, operands)
    if function is CheckpointFunction:
        return checkpointed(*alive)
    if function is dirichlet.TORCH_DIRICHLET:
        return custom_function_call.on_top(dirichlet.Dirichlet, *alive)
    if instead := torch_template(function):
        return instead(*alive)
    if instead := dtensor_calls.replacement_for(function):
        return instead(*alive)
    if old_style_dispatch.is_old_style(function):
        return old_style.apply(function, tuple(alive))
    return custom_function_call.on_top(function, *alive)


if not isinstance(higher_order.custom_function_call, MissingOperator):
    higher_order.custom_function_call.py_impl(FRONT)(_from_torch_funcs)


def checkpointed(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    """Runs reentrant checkpointing as non-reentrant: the backward of the former calls the autograd
    engine, which handles a single level."""
    return checkpoint(function, *args, preserve_rng_state=preserve_rng_state, use_reentrant=False)


@custom_function_call.py_impl(FRONT)
def _call_directly(function: Function, *operands: Any) -> Any:
    with resumed():
        if old_style_dispatch.is_old_style(function):
            return old_style.apply(function, operands)
        return custom_function_call.on_top(function, *operands)
