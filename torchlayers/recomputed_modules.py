"""What torch.utils.checkpoint recomputes has the tensors that functional_call put in.

With plain autograd a checkpoint inside a module is recomputed after functional_call has ended, when
the module has its own tensors again, and nothing of ours runs: torch.func's functional_call gives
the gradient of another function then. So torch's checkpoints keep hold of what is put in on their
thread. Inside transforms hooks do that (csrc/python/saved_hooks.cpp).
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint

from torchlayers import _C

_torchs: Any = checkpoint


def _keeps_what_is_put_in(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function; its second argument runs with the tensors that are in modules now."""

    @functools.wraps(torchs)
    def call(first: Any, run: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        return torchs(first, _C.with_tensors_put_in(run), *rest, **options)

    return call


def follow_checkpoints() -> None:
    """Once, when the package is imported."""
    frame, reentrant = _torchs._CheckpointFrame, _torchs.CheckpointFunction
    frame.__init__ = _keeps_what_is_put_in(frame.__init__)
    reentrant.forward = staticmethod(_keeps_what_is_put_in(reentrant.forward))
