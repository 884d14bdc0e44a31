"""How a tensor prints that was made inside a vmap and written a value of each sample.

To torch it is a plain tensor of one sample's shape (NOTE [Made inside] in csrc/values/inside.h),
and it would print what is in its memory. It is to print as the batched tensor that it stands for,
so torch's printing asks first, from the first such write on.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C


def show_what_was_written() -> None:
    """Lets torch's printing show what tensors stand for."""
    module: Any = torch._tensor_str
    printed = module._str_intern

    @functools.wraps(printed)
    def of_what_it_stands_for(inp: Tensor, *, tensor_contents: str | None = None) -> str:
        return printed(_C.shown(inp), tensor_contents=tensor_contents)  # type: ignore[no-any-return]

    module._str_intern = of_what_it_stands_for
