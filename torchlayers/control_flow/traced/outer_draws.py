"""Who draws for control flow in a recording: vmaps whose samples differ, layers that have a key."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import RandomnessType, TransformType

from torchlayers import _C
from torchlayers.control_flow.batched.samples import quietly

_torch: Any = torch  # what it keeps for its own use has no types
_functorch: Any = _torch._C._functorch


def batched_where_they_differ(beside: Sequence[Tensor]) -> list[Tensor]:
    """A tensor that each vmap has batched whose samples draw their own; nothing without one.

    An operator that takes nothing that is batched goes by a vmap: what its functions draw would be
    the same for all samples.

    Args:
        beside: tensors on the device where it is to be.
    """
    levels, sizes = [], []
    for each in _functorch.get_interpreter_stack() or ():
        if each.key() == TransformType.Vmap:
            vmap = _functorch.CVmapInterpreterPtr(each)
            if vmap.randomness() == RandomnessType.Different:
                levels.append(each.level())
                sizes.append(vmap.batchSize())
    if not levels:
        return []
    with quietly(), _torch._C._DisableFuncTorch():
        token = torch.zeros(sizes, device=beside[0].device if beside else None)
        for level in levels:
            token = _functorch._add_batch_dim(token, 0, level)
    return [token]


def _make_keys_of_samples() -> None:
    """A layer makes them at its first draw, and keeps them: not where nothing is recorded."""
    with ExitStack() as stack:
        while _C.top() is not None:
            _C.next_key()
            stack.enter_context(_C.Below())


class Counted:
    """Whether layers that draw by a key have drawn."""

    have_been = False


@contextmanager
def counting_again() -> Iterator[Counted]:
    """What is drawn by a key inside, is drawn once more afterwards."""
    counts = [count for _, count in _C.draws()[0]]
    if counts:
        _make_keys_of_samples()
        _C.set_draws(counts)
    counted = Counted()
    try:
        yield counted
    finally:
        counted.have_been = [count for _, count in _C.draws()[0]] != counts
        _C.set_draws(counts)
