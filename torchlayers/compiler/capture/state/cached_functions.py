"""Functions with cached results (functools.cache): a capture fills the cache as eager code does.

A result that does not depend on tensors is computed outside of the capture, without layers and
modes, so that the cache and the graph get real tensors. Results for tensors are
captured, and those that are fake tensors are dropped from the cache after it.

What such a call outside stores in Python stays, as the cache does: neither a second capture nor a
call of the graph would run the function again.
"""

import contextlib
import functools
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.compiler.capture.draws import draws_traced
from torchlayers.compiler.capture.state.state_holders import (
    HolderSnapshot,
    StandIn,
    holds_fake,
)
from torchlayers.compiler.capture.values.traced_numbers import plain_number
from torchlayers.core import pytree
from torchlayers.core.torch_private import dispatch_modes

Cached = functools._lru_cache_wrapper


class CachedStandIn(StandIn):
    """Stands for a function with a cache during a capture."""

    def __init__(self, original: Any, holders: Sequence[HolderSnapshot] = ()) -> None:
        """``holders`` have what is restored after the capture."""
        super().__init__(original)
        self._thread = threading.get_ident()
        self._holders = holders
        self._runs = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self.original(*args, **kwargs)
        args, kwargs = pytree.map_leaves(plain_number, (args, kwargs))
        if not any(isinstance(leaf, Tensor) for leaf in pytree.leaves((args, kwargs))):
            with self._writes_kept():
                result = _outside(self.original, args, kwargs)
            if not holds_fake(result):
                return result
            self.original.cache_clear()  # it read a tensor of the capture
        return self.original(*args, **kwargs)

    @contextlib.contextmanager
    def _writes_kept(self) -> Iterator[None]:
        """What is stored inside counts as stored before the capture."""
        unchanged = [holder for holder in self._holders if not holder.changed()]
        before, self._runs = self._runs, True
        try:
            yield
        finally:
            self._runs = before
            for holder in unchanged:
                now = holder.now()
                if not any(holds_fake(now.get(key)) for key in holder.changed()):
                    holder.before.clear()
                    holder.before.update(now)

    def __setattr__(self, name: str, value: Any) -> None:
        """While the function runs, an attribute that it sets, as a counter of its calls, is its."""
        is_its = self.__dict__.get("_runs", False) and name not in self.__dict__
        object.__setattr__(self.original if is_its else self, name, value)

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
