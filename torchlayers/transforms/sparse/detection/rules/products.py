"""Matrix products: an element depends on a row and a column, but for factors that are zero."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
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


def _matrices(call: Call, x: str, y: str, shape: tuple[int, int, int]) -> list[IndexSets]:
    """The sets of a product of two arguments, each with or without a batch dimension."""

    def in_batch(each: Any) -> Any:
        if each is None or len(each.shape) == 3:
            return each
        return each.reshape([1, *each.shape])

    zeros = [call.zeros(call[name]) for name in (x, y)]
    sets = [call.sets(name) for name in (x, y)]
    batched = [*map(in_batch, (*sets, *zeros))]
    return product(batched[0], batched[2], batched[1], batched[3], shape)


def _total(call: Call, terms: list[IndexSets], *added: str) -> IndexSets | None:
    parts = [term.reshape(call.shape) for term in terms] + call.parts(*added) * bool(added)
    return union(parts, call.shape) if parts else None


@rule(aten.mm, aten.addmm, aten._addmm_activation)
def mm(call: Call) -> IndexSets | None:
    names = ("self", "mat2") if call.op.overloadpacket == aten.mm else ("mat1", "mat2")
    terms = _matrices(call, *names, (1, *call.shape))
    return _total(call, terms, *(() if names[0] == "self" else ("self",)))


@rule(aten.bmm)
def bmm(call: Call) -> IndexSets | None:
    return _total(call, _matrices(call, "self", "mat2", tuple(call.shape)))  # type: ignore[arg-type]


@rule(aten.baddbmm)
def baddbmm(call: Call) -> IndexSets | None:
    terms = _matrices(call, "batch1", "batch2", tuple(call.shape))  # type: ignore[arg-type]
    return _total(call, terms, "self")


@rule(aten.addbmm)
def addbmm(call: Call) -> IndexSets | None:
    batch = call["batch1"].shape[0]
    terms = _matrices(call, "batch1", "batch2", (batch, *call.shape))
    return _total(call, [union_over(term, [0]) for term in terms], "self")


@rule(aten.mv, aten.addmv)
def mv(call: Call) -> IndexSets | None:
    is_mv = call.op.overloadpacket == aten.mv
    x, y = ("self", "vec") if is_mv else ("mat", "vec")
    sets, vector = call.sets(x), call.sets(y)
    zeros, vector_zeros = call.zeros(call[x]), call.zeros(call[y])
    terms = product(
        None if sets is None else sets.reshape([1, *sets.shape]),
        None if zeros is None else zeros.unsqueeze(0),
        None if vector is None else vector.reshape([1, -1, 1]),
        None if vector_zeros is None else vector_zeros.reshape(1, -1, 1),
        (1, call.shape[0], 1),
    )
    return _total(call, terms, *(() if is_mv else ("self",)))


@rule(aten.dot, aten.vdot)
def dot(call: Call) -> IndexSets | None:
    x, y = call["self"], call["tensor"] if "tensor" in call.arguments else call["other"]
    parts = []
    for one, other in ((x, y), (y, x)):
        if (sets := call.sets(one)) is not None:
            parts.append(union_last(sets.without(call.zeros(other))))
    return union(parts, call.shape)


@rule(aten.addr)
def addr(call: Call) -> IndexSets | None:
    x, y = call["vec1"], call["vec2"]
    parts = call.parts("self")
    if (sets := call.sets(x)) is not None:
        zeros = call.zeros(y)
        parts.append(sets.moved(lambda ids: ids.unsqueeze(1)).expand(call.shape).without(zeros))
    if (sets := call.sets(y)) is not None:
        zeros = call.zeros(x)
        zeros = None if zeros is None else zeros.unsqueeze(1)
        parts.append(sets.expand(call.shape).without(zeros))
    return union(parts, call.shape)


@rule(aten.linear)
def linear(call: Call) -> IndexSets | None:
    weight, x = call["weight"], call["input"]
    rows = call.sets(x)
    height = x.shape[:-1].numel()
    zeros, x_zeros = call.zeros(weight), call.zeros(x)
    columns = _transposed(call.sets(weight))
    terms = product(
        None if rows is None else rows.reshape([1, height, -1]),
        None if x_zeros is None else x_zeros.reshape(1, height, -1),
        None if columns is None else columns.reshape([1, *columns.shape]),
        None if zeros is None else zeros.t().unsqueeze(0),
        (1, height, weight.shape[0]),
    )
    parts = [term.reshape(call.shape) for term in terms] + call.parts("bias")
    return union(parts, call.shape)


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
    kept = [1 if d in summed else size for d, size in enumerate(full)]
    return union(reduced, kept).reshape(call.shape)
