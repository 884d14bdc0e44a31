"""Sets of input positions, one for each element of a tensor, as vectorised tensors.

Elements with equal sets may share one: a tensor has an id for each of its elements, and a table of
sets. So views, indexing, cat and the like act on the ids as they do on the values, and a dense
product of n outputs costs one set instead of n:

    ids    [[1, 2],        table  0: {}       (of constants)
            [2, 0]]               1: {3}
                                  2: {0, 3}
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchlayers import _C


class Table(NamedTuple):
    """Sets by id, in the layout of CSR: set i is ``members[starts[i]:starts[i + 1]]``, sorted.

    Set 0 is empty. All members are below ``width``.
    """

    starts: Tensor
    members: Tensor
    width: int

    @property
    def size(self) -> int:
        return self.starts.numel() - 1

    @property
    def sizes(self) -> Tensor:
        return self.starts.diff()


class IndexSets(NamedTuple):
    """The sets of a tensor's elements: int64 ids of the tensor's shape, on the CPU, and a table."""

    ids: Tensor
    table: Table

    @property
    def shape(self) -> torch.Size:
        return self.ids.shape

    def moved(self, move: Callable[[Tensor], Tensor]) -> "IndexSets":
        """The sets of a result whose elements are elements of this tensor, or constants."""
        return IndexSets(move(self.ids), self.table)

    def expand(self, shape: Sequence[int]) -> "IndexSets":
        return IndexSets(self.ids.expand(tuple(shape)), self.table)

    def reshape(self, shape: Sequence[int]) -> "IndexSets":
        return IndexSets(self.ids.reshape(tuple(shape)), self.table)

    def without(self, mask: Tensor | None) -> "IndexSets":
        """Empties the sets of elements where the mask, broadcast to the ids, is true."""
        if mask is None or not mask.any():
            return self
        return IndexSets(torch.where(mask, 0, self.ids), self.table)

    @property
    def is_empty(self) -> bool:
        return not bool(self.ids.any())

    def trimmed(self) -> "IndexSets":
        """The same with only the sets in use, if these are much fewer than the table has."""
        if self.table.size <= 4 * self.ids.numel() + 64:
            return self
        used, ids = torch.unique(self.ids, return_inverse=True)
        has_empty = bool(used.numel()) and int(used[0]) == 0
        if not has_empty:
            used, ids = torch.cat([used.new_zeros(1), used]), ids + 1
        sizes, members = _rows_of(self.table, used)
        return IndexSets(ids.reshape(self.shape), Table(_starts(sizes), members, self.table.width))


def singletons(shape: Sequence[int], first: int, table: Table) -> IndexSets:
    """Element i has the set ``{first + i}``, of a table from :func:`identity`."""
    count = torch.Size(shape).numel()
    return IndexSets(torch.arange(first + 1, first + 1 + count).reshape(tuple(shape)), table)


def identity(width: int) -> Table:
    """The empty set, and ``{i}`` for each i below width, with the id i + 1."""
    starts = torch.arange(-1, width + 1).clamp_min_(0)
    return Table(starts, torch.arange(width), width)


def as_one_table(parts: Sequence[IndexSets]) -> list[IndexSets]:
    """The same sets with ids of one table."""
    if all(part.table is parts[0].table for part in parts):
        return list(parts)
    parts = [part.trimmed() for part in parts]
    tables = list({id(part.table): part.table for part in parts}.values())
    offsets, total = {}, 0
    for table in tables:
        offsets[id(table)] = total
        total += table.size - 1
    result = []
    for part in parts:
        offset = offsets[id(part.table)]
        result.append(part.ids if offset == 0 else torch.where(part.ids == 0, 0, part.ids + offset))
    sizes = torch.cat([tables[0].sizes[:1], *(table.sizes[1:] for table in tables)])
    members = torch.cat([table.members for table in tables])
    joined = Table(_starts(sizes), members, tables[0].width)
    return [IndexSets(ids, joined) for ids in result]


def union(parts: Sequence[IndexSets], shape: Sequence[int]) -> IndexSets:
    """Elementwise unions, broadcast to the shape."""
    result = parts[0].expand(shape)
    for part in parts[1:]:
        result = _union_of_two(result, part.expand(shape))
    return result


def _union_of_two(left: IndexSets, right: IndexSets) -> IndexSets:
    if right.is_empty:
        return left
    if left.is_empty:
        return right
    if left.table is right.table and torch.equal(left.ids, right.ids):
        return left
    # With few different sets, each pair of ids is united once.
    is_shared = 2 * max(left.table.size, right.table.size) < left.ids.numel()
    ids, starts, members = _C.merge_index_sets(
        left.ids, *left.table[:2], right.ids, *right.table[:2], is_shared
    )
    return IndexSets(ids.reshape(left.shape), Table(starts, members, left.table.width))


def union_over(part: IndexSets, dims: Sequence[int], keepdim: bool = False) -> IndexSets:
    """Unions over dimensions, as ``sum`` reduces them."""
    ndim = part.ids.dim()
    chosen = sorted({d % max(ndim, 1) for d in dims})
    if ndim == 0 or not chosen:
        return part
    rest = [d for d in range(ndim) if d not in chosen]
    moved = part.ids.permute(*rest, *chosen).flatten(len(rest))
    result = union_last(IndexSets(moved, part.table))
    if keepdim:
        shape = [1 if d in chosen else size for d, size in enumerate(part.shape)]
        result = result.reshape(shape)
    return result


def union_last(part: IndexSets) -> IndexSets:
    """Unions over the last dimension."""
    *shape, length = part.shape
    if length == 1:
        return part.reshape(shape)
    rows = part.ids.reshape(torch.Size(shape).numel(), length)
    if length and bool((rows == rows[:, :1]).all()):
        return IndexSets(rows[:, 0].reshape(shape), part.table)
    groups = torch.arange(rows.shape[0]).unsqueeze(1).expand(rows.shape)
    return united(shape, groups, IndexSets(rows, part.table))


def union_all(parts: Sequence[IndexSets], shape: Sequence[int]) -> IndexSets:
    """Each element has the union of all sets of all parts."""
    totals = [union_last(part.reshape([part.ids.numel()])) for part in parts if part.ids.numel()]
    if not totals:
        return IndexSets(torch.zeros(tuple(shape), dtype=torch.int64), parts[0].table)
    return union(totals, ()).expand(shape)


def spread(part: IndexSets, dims: Sequence[int]) -> IndexSets:
    """Each element has the union of its line, plane, … along the dimensions."""
    return union_over(part, dims, keepdim=True).expand(part.shape)


def prefix_union(part: IndexSets, dim: int) -> IndexSets:
    """Unions with all elements before along the dimension, as ``cumsum`` adds them."""
    if part.ids.dim() == 0:
        return part
    length = part.shape[dim]
    step = 1
    while step < length:
        shifted = torch.zeros_like(part.ids)
        shifted.narrow(dim, step, length - step).copy_(part.ids.narrow(dim, 0, length - step))
        part = _union_of_two(part, IndexSets(shifted, part.table))
        step *= 2
    return part


def united(shape: Sequence[int], groups: Tensor, part: IndexSets) -> IndexSets:
    """The union of each group's sets.

    Args:
        shape: the shape of the result, whose elements are the groups, counted row by row.
        groups: the group of each element of the part: an int64 tensor of the part's shape.
    """
    table = part.table
    ids, starts, members = _C.unite_index_sets(
        torch.Size(shape).numel(),
        groups.reshape(-1),
        part.ids.reshape(-1),
        table.starts,
        table.members,
        table.width,
    )
    return IndexSets(ids.reshape(tuple(shape)), Table(starts, members, table.width))


def united_of_several(
    shape: Sequence[int], groups: Sequence[Tensor], parts: Sequence[IndexSets]
) -> IndexSets:
    """As :func:`united`, for the elements of several parts."""
    joined = as_one_table(parts)
    ids = torch.cat([part.ids.reshape(-1) for part in joined])
    return united(
        shape, torch.cat([group.reshape(-1) for group in groups]), IndexSets(ids, joined[0].table)
    )


def _rows_of(table: Table, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes of the sets with these ids, and their members one after the other."""
    starts = table.starts[ids]
    sizes = table.starts[ids + 1] - starts
    ends = sizes.cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    shifts = starts - (ends - sizes)
    return sizes, table.members[torch.arange(total) + _repeated(shifts, sizes, total)]


def _repeated(values: Tensor, sizes: Tensor, total: int) -> Tensor:
    """repeat_interleave, faster: by a running sum of the steps between values."""
    if values.numel() == 0 or total == 0:
        return values.new_zeros(total)
    is_used = sizes > 0
    values, sizes = values[is_used], sizes[is_used]
    result = values.new_zeros(total)
    places = sizes.cumsum(0) - sizes
    steps = values.clone()
    steps[1:] -= values[:-1]
    result[places] = steps
    return result.cumsum(0)


def _starts(sizes: Tensor) -> Tensor:
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def entries(part: IndexSets) -> tuple[Tensor, Tensor]:
    """All pairs of a position in the flattened tensor and a member of its set."""
    ids = part.ids.reshape(-1)
    sizes, members = _rows_of(part.table, ids)
    return _repeated(torch.arange(ids.numel()), sizes, members.numel()), members


def composed(
    pairs: Sequence[tuple[IndexSets, IndexSets]], results: Sequence[Tensor]
) -> dict[int, IndexSets]:
    """The sets of an operator's results, by the results' identities.

    Args:
        pairs: for each operand its sets, and the sets of positions in the flattened results that
            each of its elements affects, with a mark, the last index, that counts for nothing.
        results: the results.
    """
    count = sum(x.numel() for x in results)
    groups, parts = [], []
    for sets, affected in pairs:
        element, position = entries(affected)
        is_result = position < count
        groups.append(position[is_result])
        parts.append(IndexSets(sets.ids.reshape(-1)[element[is_result]], sets.table))
    whole = united_of_several([count], groups, parts)
    sets_of_results, first = {}, 0
    for x in results:
        ids = whole.ids[first : first + x.numel()].reshape(x.shape)
        sets_of_results[id(x)] = IndexSets(ids, whole.table)
        first += x.numel()
    return sets_of_results
