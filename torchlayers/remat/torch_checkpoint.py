"""What torch.utils.checkpoint recomputes has the tensors that functional_call put in.

With plain autograd a checkpoint inside a module is recomputed after functional_call has ended, when
the module has its own tensors again, and nothing of ours runs: torch.func's functional_call gives
the gradient of another function then. So torch's checkpoints keep hold of what is put in on their
thread. Inside transforms hooks do that (csrc/python/saved_hooks.cpp). In a recording they read the
random numbers that were drawn at first (fx/recomputation.py), and in a branch of control flow they
see the samples that it ran on (ambient_state.py).
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import checkpoint

from torchlayers import _C
from torchlayers.fx.recomputation import recording
from torchlayers.remat.ambient_state import as_seen_now

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
    """What is run when it is recomputed: as seen now; in a recording, with the same numbers."""
    recorded, as_seen = recording(), as_seen_now()
    if recorded is None and as_seen is nullcontext:
        return run
    place = recorded.here() if recorded is not None else 0

    def run_again(*args: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            return run(*args)
        with as_seen(), nullcontext() if recorded is None else recorded.again(place):
            return run(*args)

    return run_again


def follow_checkpoints() -> None:
    """Once, when the package is imported."""
    frame, reentrant = _torchs._CheckpointFrame, _torchs.CheckpointFunction
    frame.__init__ = _keeps_what_is_put_in(frame.__init__, runs=False)
    reentrant.forward = staticmethod(_keeps_what_is_put_in(reentrant.forward, runs=True))
