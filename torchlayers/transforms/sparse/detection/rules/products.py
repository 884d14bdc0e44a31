"""Matrix products: an element depends on a row and a column, but for factors that are zero."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.layers.rule_table import facts
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    union,
    union_last,
    union_over,
    united,
)
from torchlayers.transforms.sparse.detection.layer import Call, broadcast_shapes, rule


def rows_times(sets: IndexSets | None, zeros: Tensor | None, columns: int) -> IndexSets | None:
    """The sets of a batched product's first factor in the result.

    Args:
        sets: of the first factor, of shape ``(b, m, k)``.
        zeros: where the second factor, of shape ``(b, k, n)``, is zero for certain; its first
            dimension may be 1.
        columns: n.
    """
    if sets is None:
        return None
    batch, height, length = sets.shape
    shape = (batch, height, columns)
    if zeros is None or not zeros.any():
        return union_last(sets).moved(lambda ids: ids.unsqueeze(-1).expand(shape))
    keeps = ~zeros
    if keeps.shape[0] > 1 and bool((keeps == keeps[:1]).all()):
        keeps = keeps[:1]
    if keeps.shape[0] == 1:
        if bool((keeps[0] == keeps[0][:, :1]).all()):  # all columns are alike
            rows = sets.without(~keeps[0][:, 0])
            return union_last(rows).moved(lambda ids: ids.unsqueeze(-1).expand(shape))
        if length * columns <= 1 << 22:
            kinds, which = torch.unique(keeps[0], dim=1, return_inverse=True)
            if kinds.shape[1] < columns:
                few = _picked(sets, kinds.unsqueeze(0))
                return few.moved(lambda ids: ids[:, :, which])
    return _picked(sets, keeps)


def _picked(sets: IndexSets, keeps: Tensor) -> IndexSets:
    batch, height, _ = sets.shape
    columns = keeps.shape[2]
    sample, place, column = keeps.nonzero(as_tuple=True)
    if keeps.shape[0] == 1:
        ids = sets.ids[:, :, place]  # (b, m, entries)
        samples = torch.arange(batch).view(-1, 1, 1)
    else:
        ids = sets.ids.permute(1, 0, 2)[:, sample, place].unsqueeze(0)
        samples = sample.view(1, 1, -1)
    groups = (samples * height + torch.arange(height).view(1, -1, 1)) * columns + column
    shape = (batch, height, columns)
    return united(shape, groups.expand(ids.shape), IndexSets(ids, sets.table))


def _transposed(sets: IndexSets | None) -> IndexSets | None:
    return None if sets is None else sets.moved(lambda ids: ids.transpose(-1, -2))


def product(
    x: IndexSets | None,
    x_zeros: Tensor | None,
    y: IndexSets | None,
    y_zeros: Tensor | None,
    shape: tuple[int, int, int],
) -> list[IndexSets]:
    """The sets of a batched matrix product of that shape."""
    _, height, width = shape
    mirrored_zeros = None if x_zeros is None else x_zeros.transpose(-1, -2)
    terms = [
        rows_times(x, y_zeros, width),
        _transposed(rows_times(_transposed(y), mirrored_zeros, height)),
    ]
    return [term for term in terms if term is not None]


@rule("contraction")
def contraction(call: Call) -> IndexSets | None:
    """Two tensors meet in the dimensions that csrc/rules names; others are added."""
    known = facts(call.op)
    assert known["contracts"] is not None
    left, right, dims = known["contracts"]
    names = [call.names[place] for place in (left, right)]
    operands, result = dims.split("->")
    tensors = [call[name] for name in names]
    labels = _labels([*operands.split(","), result], [x.dim() for x in tensors])
    sizes: dict[str, int] = {}
    for x, letters in zip(tensors, labels, strict=False):
        for label, size in zip(letters, x.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    first, second, last = labels
    batch = [label for label in last if label in first and label in second]
    rows = [label for label in last if label in first and label not in second]
    columns = [label for label in last if label not in first]
    summed = [label for label in first if label not in last]
    shape = [math.prod(sizes[label] for label in group) for group in (batch, rows, columns)]

    def in_order(ids: Tensor | None, letters: str, orders: Sequence[list[str]]) -> Tensor | None:
        """A matrix for each element of the batch, of these dimensions."""
        if ids is None:
            return None
        ids = ids.expand([sizes[label] for label in letters])
        ids = ids.permute([letters.index(label) for order in orders for label in order])
        return ids.reshape([math.prod(sizes[label] for label in order) for order in orders])

    parts: list[IndexSets | None] = []
    zeros: list[Tensor | None] = []
    orders = ((batch, rows, summed), (batch, summed, columns))
    for x, letters, order in zip(tensors, labels, orders, strict=False):
        sets = call.sets(x)
        ids = in_order(None if sets is None else sets.ids, letters, order)
        parts.append(None if sets is None or ids is None else IndexSets(ids, sets.table))
        zeros.append(in_order(call.zeros(x), letters, order) if known["is_product"] else None)
    terms = product(parts[0], zeros[0], parts[1], zeros[1], (shape[0], shape[1], shape[2]))
    ordered = [*batch, *rows, *columns]
    back = [ordered.index(label) for label in last]

    def placed(ids: Tensor) -> Tensor:
        return ids.reshape([sizes[label] for label in ordered]).permute(back)

    others = [name for name in call.names if name not in names]
    total = [term.moved(placed).reshape(call.shape) for term in terms]
    total += call.parts(*others) if others else []
    return union(total, call.shape) if total else None


def _labels(dims: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The dimensions one by one, with labels for those that an ellipsis stands for."""
    counts = [n - len(letters.strip(".")) for letters, n in zip(dims, counts, strict=False)]
    longest = max(
        (n for letters, n in zip(dims, counts, strict=False) if "..." in letters), default=0
    )
    every = "".join(map(chr, range(ord("A"), ord("A") + longest)))
    counts.append(longest)
    return [
        letters.replace("...", every[longest - n :])
        for letters, n in zip(dims, counts, strict=True)
    ]


@rule(aten._trilinear)
def trilinear(call: Call) -> IndexSets | None:
    """A sum over some dimensions of the product of three tensors, broadcast."""
    parts, shapes = [], []
    for i in ("1", "2", "3"):
        shape = [*call["i" + i].shape]
        for d in call["expand" + i]:
            shape.insert(d, 1)
        shapes.append(shape)
        if (sets := call.sets("i" + i)) is not None:
            parts.append(sets.reshape(shape))
    full = broadcast_shapes(*shapes)
    summed = call["sumdim"]
    # Before a sum, each is united over the summed dimensions in which it extends.
    reduced = [union_over(part, summed, keepdim=True) for part in parts]
    sizes = [1 if d in summed else size for d, size in enumerate(full)]
    return union(reduced, sizes).reshape(call.shape)
