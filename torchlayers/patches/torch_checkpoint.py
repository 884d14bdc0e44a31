"""Makes recomputation in torch.utils.checkpoint use the tensors that functional_call has put in.

With plain autograd a checkpoint inside a module is recomputed after functional_call has returned,
when the module has its own tensors again, and outside our code: without us the gradient is then
that of another function. So torch's checkpoints are patched to run as they would at the call
(deferred.py). Inside transforms saved-tensor hooks do that (csrc/python/hooks/saved_hooks.cpp). In
a captured graph the recomputation reads the random numbers of the first run (fx/recomputation.py),
and in a branch of control flow it sees the same samples as the first run (ambient_state.py). Inside
transforms it may not write to what it has saved.
"""

import collections
import functools
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torchlayers import _C
from torchlayers.core.errors import RecomputationError
from torchlayers.core.tensors.tensor_versions import describe_write, version_of
from torchlayers.core.torch_private import saved_hooks
from torchlayers.fx.recomputation import current_recomputations
from torchlayers.remat.ambient_state import capture_view_modes
from torchlayers.remat.deferred import deferred


def _with_swapped_parameters(torchs: Callable[..., Any], *, runs: bool) -> Callable[..., Any]:
    """Wraps torch's function so that its second argument runs with the tensors that modules have
    now.

    Saved-tensor hooks around it are adopted first, so that they know the levels of the tensors that
    it saves: no operator runs before that would do it.

    Args:
        runs: whether torch's function calls the second argument in the forward, too.
    """

    @functools.wraps(torchs)
    def call(first: Any, run: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        if saved_hooks._top_saved_tensors_default_hooks(True) is not None:
            _C.adopt_saved_hooks()
        return torchs(first, _recompute(run, runs), *rest, **options)

    return call


def _recompute(run: Callable[..., Any], is_first: bool) -> Callable[..., Any]:
    """Wraps `run` so that recomputation has the modules, variables and samples seen now and, in a
    captured graph, the same random numbers."""
    recorded, as_seen = current_recomputations(), capture_view_modes()
    later = deferred(run)
    if later is run and recorded is None and as_seen is nullcontext:
        return run
    place = recorded.position() if recorded is not None else 0

    def run_again(*args: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            return run(*args)
        with as_seen(), nullcontext() if recorded is None else recorded.replaying(place):
            return later(*args)

    return run_again


class _Recomputed(weakref.WeakKeyDictionary[Any, Any]):
    """The tensors that a recomputation inside transforms has saved. Those that it has written to
    since are refused, as they are without a checkpoint; torch does not check."""

    def __setitem__(self, handle: Any, saved: Any) -> None:
        version = version_of(saved) if _C.top() is not None else None
        super().__setitem__(handle, (saved, version))

    def __getitem__(self, handle: Any) -> Any:
        saved, version = super().__getitem__(handle)
        if version is not None and version != (current := version_of(saved)):
            raise RecomputationError(
                "torchlayers: a tensor that a function in torch.utils.checkpoint needs "
                f"{describe_write(version, current)}"
            )
        return saved


def _checking_versions(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a frame's __init__, so that the frame keeps what is recomputed in a _Recomputed."""

    @functools.wraps(torchs)
    def init(frame: Any, *args: Any, **options: Any) -> None:
        torchs(frame, *args, **options)
        frame.recomputed = collections.defaultdict(_Recomputed)

    return init


def frame_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces _CheckpointFrame.__init__."""
    return _with_swapped_parameters(_checking_versions(torchs), runs=False)


def forward_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces CheckpointFunction.forward."""
    return _with_swapped_parameters(torchs, runs=True)
