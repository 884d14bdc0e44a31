"""Printing of tensors written to inside a vmap.

A tensor that was created inside a vmap, and to which batched values were written, is to torch a
plain tensor of one sample's shape (NOTE [Made inside] in csrc/values/local_storages.h), whose
memory torch would print. It prints as the batched tensor that it represents.
"""

from collections.abc import Callable

from torch import Tensor

from torchlayers import _C


def text_of(torchs: Callable[..., str]) -> Callable[..., str]:
    """Replaces the function of torch that prints a tensor."""

    def text(inp: Tensor, *, tensor_contents: str | None = None) -> str:
        return torchs(_C.shown(inp), tensor_contents=tensor_contents)

    return text
