"""Entry point of Functions: rules for our front key, on torch's custom_function_call and ours."""

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call as torch_funcs
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from torchlayers.autograd_function import dirichlet, old_style, old_style_dispatch
from torchlayers.autograd_function.custom_function_call import (
    FRONT,
    Function,
    check_by_position,
    custom_function_call,
)
from torchlayers.core import pytree
from torchlayers.distributed import dtensor_calls

_functorch: Any = torch._C._functorch


@torch_funcs.py_impl(FRONT)
def _from_torch_funcs(function: Function, *operands: Any, **options: Any) -> Any:
    check_by_position(function, options)
    alive = pytree.map_all_tensors(_functorch.unwrap_if_dead, operands)
    if function is CheckpointFunction:
        return checkpointed(*alive)
    if function is dirichlet.TORCH_DIRICHLET:
        return custom_function_call.on_top(dirichlet.Dirichlet, *alive)
    if instead := dtensor_calls.replacement_for(function):
        return instead(*alive)
    if old_style_dispatch.is_shown_as_new(function):
        return old_style.apply(function, tuple(alive))
    return custom_function_call.on_top(function, *alive)


def checkpointed(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    """Runs reentrant checkpointing as non-reentrant: the backward of the former calls the autograd
    engine, which handles a single level."""
    return checkpoint(function, *args, preserve_rng_state=preserve_rng_state, use_reentrant=False)


@custom_function_call.py_impl(FRONT)
def _called_directly(function: Function, *operands: Any) -> Any:
    if old_style_dispatch.is_old_style(function):
        return old_style.apply(function, operands)
    return custom_function_call.on_top(function, *operands)
