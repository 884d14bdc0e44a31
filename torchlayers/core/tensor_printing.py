"""Printing of tensors that escaped from a transform, and of tensors written to inside a vmap.

A tensor that has escaped from its transform prints as such: BatchedTensor(escaped, ...).

A tensor that was created inside a vmap, and to which batched values were written, is to torch a
plain tensor of one sample's shape (NOTE [Made inside] in csrc/values/local_storages.h); torch would
print that memory. It should print as the batched tensor that it represents, so from the first such
write on, torch's printing is patched to look it up.
"""

import functools
from collections.abc import Callable

from torch import Tensor

from torchlayers import _C
from torchlayers.core.private_names import patch
from torchlayers.core.torch_private import ENDED, functorch, is_batched_wrapper, torch_private


def patch_printing_of_written() -> None:
    """Patches torch's printing to show the batched tensors that plain tensors represent."""

    def make(printed: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(printed)
        def of_what_it_stands_for(inp: Tensor, *, tensor_contents: str | None = None) -> str:
            return printed(_C.shown(inp), tensor_contents=tensor_contents)

        return of_what_it_stands_for

    patch("torch._tensor_str._str_intern", make)


def has_escaped(tensor: Tensor) -> bool:
    """Whether a tensor with a level is outside the transform that created it."""
    level = functorch.maybe_get_level(tensor)
    stack = functorch.get_interpreter_stack() or ()
    if level == ENDED or level > len(stack):
        return True
    kind = stack[level - 1].key().name
    if is_batched_wrapper(tensor):
        return bool(kind != "Vmap")
    return bool(torch_private._is_functional_tensor(tensor) and kind != "Functionalize")


def _marking_escaped(printed: Callable[..., str]) -> Callable[..., str]:
    """Wraps torch's printing of tensors with a level to mark those that have escaped."""

    @functools.wraps(printed)
    def of_a_level(tensor: Tensor, *, tensor_contents: str | None = None) -> str:
        text = printed(tensor, tensor_contents=tensor_contents)
        return text.replace("(", "(escaped, ", 1) if has_escaped(tensor) else text

    return of_a_level


patch("torch._tensor_str._functorch_wrapper_str_intern", _marking_escaped)
