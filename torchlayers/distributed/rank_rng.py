"""Makes ranks whose generators are in the same state draw different random numbers."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchlayers.core.private_names import lookup
from torchlayers.distributed import dtensor


@contextlib.contextmanager
def per_rank_draws(*place: int) -> Iterator[None]:
    """Makes ranks with different `place` draw different numbers inside the block, and all ranks the
    same again afterwards.

    Seeds are computed from the generator's state, without operators, which layers would see.
    """
    state = torch.get_rng_state().numpy().tobytes()
    torch.manual_seed(_seed(state, *place))
    try:
        yield
    finally:
        torch.manual_seed(_seed(state, -1))


def begin_per_rank_draws(x: Tensor) -> Callable[[], object] | None:
    """Makes ranks that hold different shards of x draw different numbers.

    Returns a function that ends this; or None if x is not a DTensor, or DTensor itself does it.
    DTensor does on devices whose generators support offsets; on others all shards would get the
    same numbers.
    """
    below = dtensor.innermost_tensor(x)
    if not dtensor.is_dtensor(below):
        return None
    mesh = below.device_mesh
    place = [
        mesh.get_local_rank(dim)
        for dim, placement in enumerate(below.placements)
        if not placement.is_replicate()
    ]
    if not place or lookup("torch.distributed.tensor._random.is_rng_supported_mesh")(mesh):
        return None
    stack = contextlib.ExitStack()
    stack.enter_context(per_rank_draws(*place))
    return stack.close


def _seed(state: bytes, *place: int) -> int:
    key = state + ",".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
