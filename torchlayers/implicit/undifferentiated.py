"""Runs a solver without differentiating it, at any level."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.torch_private import dual_level, is_forward_mode_on, set_forward_mode


@contextlib.contextmanager
def undifferentiated() -> Iterator[None]:
    """Makes operators constants of every derivative from outside, in both modes.

    Transforms that are called inside differentiate as ever.
    """
    with torch.no_grad(), set_forward_mode(False):
        yield


def solution(solve: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of solve(*args), as a constant."""
    with undifferentiated():
        return pytree.map_tensors(Tensor.detach, solve(*args))


def is_constant() -> bool:
    """Whether results computed here are constants of every derivative."""
    if torch.is_grad_enabled():
        return False
    if not is_forward_mode_on():
        return True
    return not (_C.any_layer() or dual_level() >= 0)
