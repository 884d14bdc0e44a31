"""Where a Function comes to our layers: on our front key, from torch's custom_function_call."""

from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call as torch_funcs

from torchlayers import _C, tree
from torchlayers.autograd_function import adoption, old_style
from torchlayers.autograd_function.call import Function, custom_function_call

_functorch: Any = torch._C._functorch


@torch_funcs.py_impl(torch._C._dispatch_key_parse(_C.FRONT_KEY))
def _from_torch_funcs(function: Function, *operands: Any) -> Any:
    alive = tree.map_all_tensors(_functorch.unwrap_if_dead, operands)
    if adoption.is_shown_as_new(function):
        return old_style.apply(function, tuple(alive))
    return custom_function_call(function, *alive)
