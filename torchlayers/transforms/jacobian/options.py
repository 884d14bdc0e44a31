"""Options of jacrev and jacfwd, for type checkers."""

from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from torchlayers.core.annotations import Randomness
from torchlayers.distributed.mesh import Check, Out
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.sparse.assembly import Layout
from torchlayers.transforms.sparse.derivatives import Sparse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class JacobianOptions(TypedDict, total=False, closed=True):
    """The options of jacrev that leave the types of its results as they are."""

    chunk_size: ChunkSize
    memory_budget: int | float | None
    progress: bool
    mesh: "DeviceMesh | None"
    out: Out
    check: Check | bool
    sparse: Sparse | None
    layout: Layout


class ForwardOptions(TypedDict, total=False, closed=True):
    """The options of jacfwd that leave the types of its results as they are."""

    randomness: Randomness
    chunk_size: ChunkSize
    memory_budget: int | None
    progress: bool
    mesh: "DeviceMesh | None"
    out: Out
    check: Check | bool
    sparse: Sparse | None
    layout: Layout
