"""Concatenates the gradients of slices, which autograd adds up as tensors that are mostly zero.

A network that is unrolled in time reads its input step by step. With T steps, a sum of the T
gradients is T times as large as what they hold.
"""

import itertools
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.products.sums import (
    is_read_once,
    replace_terms,
    rewrite_sums,
    sum_of,
    terms_of,
)
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import calls, emit, same_kind, value

_BACKWARDS = (aten.select_backward.default, aten.slice_backward.default)


class _Slice(NamedTuple):
    """A term: a tensor of zeros, but for one interval of a dimension."""

    start: int
    end: int
    dim: int
    node: Node

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.end


def concatenate_slices(graph: GraphModule) -> None:
    """Exact, up to the sign of zeros; gradients of the same slice are added in another order."""
    rewrite_sums(graph, _concatenated)


def _concatenated(root: Node) -> bool:
    terms = [*terms_of(root)]
    slices_of_x = [part for term in terms if (part := _slice_of(term, terms)) is not None]
    for dim in dict.fromkeys(part.dim for part in slices_of_x):
        slices = sorted(part for part in slices_of_x if part.dim == dim)
        intervals = [*dict.fromkeys(part.interval for part in slices)]
        if not _are_worth(intervals, value(root).shape[dim]):
            continue
        whole = _whole(root, slices, intervals)
        replace_terms(root, terms, [part.node for part in slices], [whole])
        return True
    return False


def _slice_of(term: Node, terms: list[Node]) -> _Slice | None:
    if not calls(term, *_BACKWARDS) or term.kwargs or not is_read_once(term, terms):
        return None
    args: Any = term.args
    gradient, sizes, dim, *place = args
    if not all(isinstance(number, int) for number in (*sizes, dim, *place)):
        return None
    dim %= len(sizes)
    if calls(term, aten.select_backward.default):
        start, end, step = place[0] % sizes[dim], place[0] % sizes[dim] + 1, 1
        of_slice = [*sizes[:dim], *sizes[dim + 1 :]]
    else:
        start, end, step = slice(*place).indices(sizes[dim])
        of_slice = [*sizes[:dim], end - start, *sizes[dim + 1 :]]
    is_whole = [*value(gradient).shape] == of_slice and same_kind(value(gradient), value(term))
    return _Slice(start, end, dim, term) if step == 1 and start < end and is_whole else None


def _are_worth(intervals: list[tuple[int, int]], size: int) -> bool:
    """Whether they are several, do not overlap, and cover at least half of the dimension."""
    if len(intervals) < 2 or 2 * sum(end - start for start, end in intervals) < size:
        return False
    return all(one[1] <= other[0] for one, other in itertools.pairwise(intervals))


def _whole(root: Node, slices: list[_Slice], intervals: list[tuple[int, int]]) -> Node:
    """The sum of the slices, with zeros where there is none."""
    dim, at, parts = slices[0].dim, 0, list[Node]()
    for start, end in intervals:
        if at < start:
            parts.append(_zeros(root, dim, start - at))
        parts.append(_sum(root, [part for part in slices if part.start == start]))
        at = end
    if at < value(root).shape[dim]:
        parts.append(_zeros(root, dim, value(root).shape[dim] - at))
    return emit(root, aten.cat.default, parts, dim)


def _sum(root: Node, same: list[_Slice]) -> Node:
    """The sum of gradients of the same interval, which is of size 1 if it was selected."""
    selected: list[Any] = [part.node.args[0] for part in same if calls(part.node, _BACKWARDS[0])]
    sliced: list[Any] = [part.node.args[0] for part in same if calls(part.node, _BACKWARDS[1])]
    if selected:
        total = sum_of(root, selected)
        sliced.append(emit(root, aten.unsqueeze.default, total, same[0].dim))
    return sum_of(root, sliced)


def _zeros(root: Node, dim: int, size: int) -> Node:
    fake = value(root)
    sizes = [*fake.shape[:dim], size, *fake.shape[dim + 1 :]]
    return emit(root, aten.full.default, sizes, 0.0, dtype=fake.dtype, device=fake.device)
