"""Random numbers that differ from rank to rank, where the ranks' generators are alike."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchlayers.distributed import dtensor


@contextlib.contextmanager
def apart(*place: int) -> Iterator[None]:
    """Inside, ranks of different places draw numbers of their own; afterwards all draw alike again.

    Seeds come of the generator's state, without an operator, which layers would see.
    """
    state = torch.get_rng_state().numpy().tobytes()
    torch.manual_seed(_seed(state, *place))
    try:
        yield
    finally:
        torch.manual_seed(_seed(state, -1))


def begin_apart(x: Tensor) -> Callable[[], object] | None:
    """Lets ranks that hold different parts of x draw numbers of their own, until what is returned
    is called; None where torch's DTensors see to that, or x is none.

    torch does on devices whose generators can be set forward. On others all parts are drawn alike.
    """
    below = dtensor.under_levels(x)
    if not dtensor.is_dtensor(below):
        return None
    from torch.distributed.tensor._random import is_rng_supported_mesh

    mesh = below.device_mesh
    place = [
        mesh.get_local_rank(dim)
        for dim, each in enumerate(below.placements)
        if not each.is_replicate()
    ]
    if not place or is_rng_supported_mesh(mesh):
        return None
    stack = contextlib.ExitStack()
    stack.enter_context(apart(*place))
    return stack.close


def _seed(state: bytes, *place: int) -> int:
    key = state + ",".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
