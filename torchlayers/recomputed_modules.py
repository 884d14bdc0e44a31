"""What torch.utils.checkpoint recomputes has the tensors that functional_call put in.

With plain autograd a checkpoint inside a module is recomputed after functional_call has ended, when
the module has its own tensors again, and nothing of ours runs: torch.func's functional_call gives
the gradient of another function then. So torch's checkpoints keep hold of what is put in on their
thread. Inside transforms hooks do that (csrc/python/saved_hooks.cpp). In a recording they read the
random numbers that were drawn at first (recorded_again.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

from torchlayers import _C
from torchlayers.recorded_again import recording

_torchs: Any = checkpoint
_autograd: Any = torch._C._autograd


def _keeps_what_is_put_in(torchs: Callable[..., Any], *, runs: bool) -> Callable[..., Any]:
    """torch's function. Its second argument runs with the tensors that are in modules now.

    Hooks around it are to know the levels of the tensors that it saves: no operator comes first.

    Args:
        runs: whether it runs that at first, too.
    """

    @functools.wraps(torchs)
    def call(first: Any, run: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        if _autograd._top_saved_tensors_default_hooks(True) is not None:
            _C.adopt_saved_hooks()
        return torchs(first, _again(_C.with_tensors_put_in(run), runs), *rest, **options)

    return call


def _again(run: Callable[..., Any], is_first: bool) -> Callable[..., Any]:
    """What is run when it is recomputed: in a recording, with the same random numbers."""
    recorded = recording()
    if recorded is None:
        return run
    place = recorded.here()

    def run_again(*args: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            return run(*args)
        with recorded.again(place):
            return run(*args)

    return run_again


def follow_checkpoints() -> None:
    """Once, when the package is imported."""
    frame, reentrant = _torchs._CheckpointFrame, _torchs.CheckpointFunction
    frame.__init__ = _keeps_what_is_put_in(frame.__init__, runs=False)
    reentrant.forward = staticmethod(_keeps_what_is_put_in(reentrant.forward, runs=True))
