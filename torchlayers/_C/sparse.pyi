"""Sets of indices and patterns of sparse matrices."""

from torch import Tensor

def merge_index_sets(
    left_ids: Tensor,
    left_starts: Tensor,
    left_members: Tensor,
    right_ids: Tensor,
    right_starts: Tensor,
    right_members: Tensor,
    share: bool,
    /,
) -> tuple[Tensor, Tensor, Tensor]: ...
def unite_index_sets(
    count: int, groups: Tensor, ids: Tensor, starts: Tensor, members: Tensor, width: int, /
) -> tuple[Tensor, Tensor, Tensor]: ...

class PatternGraph:
    def __init__(self, from_: Tensor, to: Tensor, size: int, /) -> None: ...
    def distance_two(self, begin: int, end: int, order: str, most: int, /) -> Tensor | None: ...
    def star(
        self, order: str, cautious: bool, split: int, neutral: Tensor | None, most: int, /
    ) -> Tensor | None: ...
    def acyclic(self, order: str, /) -> Tensor: ...
    def substitution(self, colors: Tensor, /) -> tuple[Tensor, Tensor]: ...
    def neutral_vertices(self, split: int, /) -> Tensor: ...
