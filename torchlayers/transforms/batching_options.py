"""The options that vmap, jacrev, jacfwd and hessian have in common: chunks, and a mesh of ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError
from torchlayers.distributed.mesh import Check, MeshExecution, Out
from torchlayers.transforms import chunking
from torchlayers.transforms.chunking import ChunkSize, Result

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class BatchingOptions(NamedTuple):
    """How many samples, rows or columns run at a time, and on which ranks.

    Attributes:
        chunk_size, memory_budget, progress: as for :func:`torchlayers.vmap`.
        mesh, out, check: likewise.
    """

    chunk_size: ChunkSize = None
    memory_budget: int | None = None
    progress: bool = False
    mesh: "DeviceMesh | None" = None
    out: Out = "dtensor"
    check: Check | bool = "first"

    @property
    def at_once(self) -> bool:
        """Whether everything runs in one chunk, without a progress bar."""
        return self.chunk_size is None and not self.progress

    def split_budget(self, api: str) -> tuple[int | float | None, "BatchingOptions"]:
        """Returns the function's memory budget, and the options with that of a chunk alone."""
        of_func, of_chunk = chunking.split_budget(api, self.chunk_size, self.memory_budget)
        return of_func, self._replace(memory_budget=of_chunk)

    def spread(self, api: str, func: Callable[..., object]) -> MeshExecution | None:
        """Returns the ranks to spread over; None without a mesh."""
        if self.mesh is None:
            return None
        name = f"{api}({pytree.name_of(func)}, mesh=...)"
        return MeshExecution(name, self.mesh, self.out, cast(Check, self.check))

    def refuse_check(self, api: str) -> None:
        """Raises an error if check=True would be ignored: without sparse= and without a mesh."""
        if self.check is True and self.mesh is None:
            raise TransformError(
                f"torchlayers: {api}: check=True compares a sparse derivative with the dense one, "
                "so it needs sparse=. Pass sparse=True, a pattern or a coloring, or leave check "
                "out."
            )

    def run(
        self,
        work: Callable[[int, int], Result],
        total: int,
        device: torch.device,
        label: str,
        largest: Callable[[int], int] = int,
    ) -> list[Result]:
        """Returns ``[work(start, size), ...]`` for chunks that cover ``range(total)`` in order."""
        return chunking.run(
            work,
            total,
            self.chunk_size,
            self.memory_budget,
            device,
            self.progress,
            label,
            largest,
        )

    def refuse_while_tracing(self, api: str, *, any_chunks: bool) -> None:
        """Raises an error if torch.compile can't trace one of the options that are set."""
        chunks = self.chunk_size if any_chunks or self.chunk_size == "auto" else None
        tracing_state.refuse(api, chunk_size=chunks, progress=self.progress, mesh=self.mesh)
