"""Runs a solver without differentiating it, at any level."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.torch_private import torch_c


@contextlib.contextmanager
def undifferentiated() -> Iterator[None]:
    """Makes operators constants of every derivative from outside, in both modes.

    Transforms that are called inside differentiate as ever.
    """
    with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
        yield


def solution(solve: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of solve(*args), as a constant."""
    with undifferentiated():
        return pytree.map_tensors(Tensor.detach, solve(*args))


def is_constant() -> bool:
    """Whether results computed here are constants of every derivative."""
    if torch.is_grad_enabled():
        return False
    if not torch_c._is_fwd_grad_enabled():
        return True
    return not (_C.any_layer() or forward_ad._current_level >= 0)
