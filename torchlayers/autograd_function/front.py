"""Where a Function comes to our layers: on our front key, from torch's custom_function_call."""

from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call as torch_funcs

from torchlayers import tree
from torchlayers.autograd_function import adoption, old_style
from torchlayers.autograd_function.call import (
    FRONT,
    Function,
    check_by_position,
    custom_function_call,
)
from torchlayers.distributed import dtensor_api

_functorch: Any = torch._C._functorch


@torch_funcs.py_impl(FRONT)
def _from_torch_funcs(function: Function, *operands: Any, **options: Any) -> Any:
    check_by_position(function, options)
    alive = tree.map_all_tensors(_functorch.unwrap_if_dead, operands)
    if instead := dtensor_api.instead_of(function):
        return instead(*alive)
    if adoption.is_shown_as_new(function):
        return old_style.apply(function, tuple(alive))
    return custom_function_call.on_top(function, *alive)


@custom_function_call.py_impl(FRONT)
def _called_directly(function: Function, *operands: Any) -> Any:
    if adoption.is_old_style(function):
        return old_style.apply(function, operands)
    return custom_function_call.on_top(function, *operands)
