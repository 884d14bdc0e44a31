"""How tensors print: those that have escaped, and those that a vmap's function has written to.

A tensor kept from a transform and printed outside it says so: BatchedTensor(escaped, ...).

One that was made inside a vmap and written a value of each sample is to torch a plain tensor of one
sample's shape (NOTE [Made inside] in csrc/values/inside.h), and would print what is in its memory.
It is to print as the batched tensor that it stands for, so torch's printing asks first, from the
first such write on.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C

_functorch: Any = torch._C._functorch
_tensor_str: Any = torch._tensor_str
_DEAD = -2  # the level of a wrapper of a grad or jvp that has ended


def show_what_was_written() -> None:
    """Lets torch's printing show what tensors stand for."""
    printed = _tensor_str._str_intern

    @functools.wraps(printed)
    def of_what_it_stands_for(inp: Tensor, *, tensor_contents: str | None = None) -> str:
        return printed(_C.shown(inp), tensor_contents=tensor_contents)  # type: ignore[no-any-return]

    _tensor_str._str_intern = of_what_it_stands_for


def has_escaped(tensor: Tensor) -> bool:
    """Whether a tensor of a level is outside the transform that made it."""
    level = _functorch.maybe_get_level(tensor)
    stack = _functorch.get_interpreter_stack() or ()
    if level == _DEAD or level > len(stack):
        return True
    kind = stack[level - 1].key().name
    if _functorch.is_batchedtensor(tensor):
        return bool(kind != "Vmap")
    return bool(_functorch.is_functionaltensor(tensor) and kind != "Functionalize")


def _show_what_has_escaped() -> None:
    """Lets torch's printing of tensors of a level say it."""
    printed = _tensor_str._functorch_wrapper_str_intern

    @functools.wraps(printed)
    def of_a_level(tensor: Tensor, *, tensor_contents: str | None = None) -> str:
        text: str = printed(tensor, tensor_contents=tensor_contents)
        return text.replace("(", "(escaped, ", 1) if has_escaped(tensor) else text

    _tensor_str._functorch_wrapper_str_intern = of_a_level


_show_what_has_escaped()
