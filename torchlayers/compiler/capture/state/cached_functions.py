"""Functions with cached results (functools.cache): a capture fills the cache as eager code does.

A result that does not depend on tensors is computed outside of the capture, without layers and
modes, so that the cache and the graph get real tensors. Results for tensors are
captured, and those that are fake tensors are dropped from the cache after it.
"""

import functools
import threading
import types
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.compiler.capture.draws import draws_traced
from torchlayers.compiler.capture.state.state_holders import StandIn, holds_fake
from torchlayers.compiler.capture.values.traced_numbers import plain_number
from torchlayers.core import pytree
from torchlayers.core.torch_private import dispatch_modes

Cached = functools._lru_cache_wrapper


class CachedStandIn(StandIn):
    """Stands for a function with a cache during a capture."""

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self._thread = threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self.original(*args, **kwargs)
        args, kwargs = pytree.map_leaves(plain_number, (args, kwargs))
        if not any(isinstance(leaf, Tensor) for leaf in pytree.leaves((args, kwargs))):
            result = _outside(self.original, args, kwargs)
            if not holds_fake(result):
                return result
            self.original.cache_clear()  # it read a tensor of the capture
        return self.original(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _outside(function: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function as if nothing were captured."""
    with (
        dispatch_modes._disable_current_modes(),
        torch.DisableTorchFunction(),
        draws_traced(None),
    ):
        return _C.at_level(0, lambda: function(*args, **kwargs))
