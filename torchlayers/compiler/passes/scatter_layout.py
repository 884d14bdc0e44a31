"""Lays out indexed additions to rows with the batch innermost if the rows are short.

In a batch of clusters of atoms, for example, each pair adds three numbers to each of two rows. A
compiler's loops follow the result's layout, a row's elements innermost: it vectorizes over three
elements only, and computes what a pair has in common, such as a squared distance, one by one.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.hoist_unbatched import LANES, give_memory, is_fused
from torchlayers.core.device import is_on_host
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_pinned,
    is_tensor,
    replace,
    value,
)

UNROLLED = 8  # terms up to which a sum is computed as one expression


def lay_batches_innermost(graph: GraphModule) -> None:
    """Exact: the same additions, in the same order for each element."""
    laid_out: set[Node] = set()
    for node in list(graph.graph.nodes):
        if not calls(node, aten.index_put.default) or not (dims := _batch_of(node)):
            continue
        if (rows := _computed(node.args[2])) not in laid_out:
            sums = _short_sums(rows, dims)
            if not sums or not is_fused(rows) or any(map(is_pinned, (*sums, rows))):
                continue
            for result in (*sums, rows):
                laid_out.add(give_memory(result, _strides(value(result), dims)))
        _turn(node, dims)


def _batch_of(node: Node) -> int:
    """Returns the number of batch dimensions; 0 if the node is to stay unchanged."""
    _, indices, values, *accumulates = node.args
    fake, rows = value(node), value(values)
    if not accumulates or not accumulates[0] or not isinstance(indices, (list, tuple)):
        return 0
    numbers = [index for index in indices if index is not None]
    if not numbers:
        return 0
    dims = next(at for at, index in enumerate(indices) if index is not None)
    if [*indices[dims : dims + len(numbers)]] != numbers:  # separated: indexed dims go to the front
        return 0
    if any(not is_tensor(index) or value(index).dtype.itemsize < 4 for index in numbers):
        return 0  # masks
    sizes = [*fake.shape, *rows.shape]
    if not is_on_host(fake) or not all(isinstance(size, int) for size in sizes):
        return 0
    batch, row = fake.shape[:dims], fake.shape[dims + len(numbers) :]
    rank = dims + max(value(index).dim() for index in numbers) + len(row)
    is_whole = rows.dim() == rank and rows.shape[:dims] == batch
    fits = fake.is_floating_point() and fake.itemsize >= 4 and 2 * math.prod(row) <= LANES
    return dims if is_whole and fits and math.prod(batch) >= LANES else 0


def _turn(node: Node, dims: int) -> None:
    whole, indices, values, accumulates = node.args
    whole = emit(node, aten.permute.default, whole, _inwards(value(whole), dims))
    whole = emit(node, aten.clone.default, whole, memory_format=torch.contiguous_format)
    values = emit(node, aten.permute.default, values, _inwards(value(values), dims))
    rest: Any = [*indices][dims:]  # type: ignore[misc]
    turned = emit(node, aten.index_put.default, whole, rest, values, accumulates)
    rank = value(turned).dim()
    back = [*range(rank - dims, rank), *range(rank - dims)]
    replace(node, emit(node, aten.permute.default, turned, back))


def _computed(values: Any) -> Any:
    """Strips negations: a value and its negative, added to different rows, are computed once."""
    while calls(values, aten.neg.default):
        values = values.args[0]
    return values


def _short_sums(values: Node, dims: int) -> list[Node]:
    """Returns the short sums per batch entry that a value is computed from, to be materialized."""
    batch = value(values).shape[:dims]
    sums, seen, behind = [], {values}, [values]
    while behind:
        for operand in behind.pop().all_input_nodes:
            if operand in seen or not is_tensor(operand) or value(operand).shape[:dims] != batch:
                continue
            seen.add(operand)
            if calls(operand, aten.sum.dim_IntList):
                if value(operand.args[0]).numel() <= UNROLLED * value(operand).numel():
                    sums.append(operand)
            elif operand.op == "call_function":
                behind.append(operand)
    return sums


def _inwards(fake: Tensor, dims: int) -> list[int]:
    return [*range(dims, fake.dim()), *range(dims)]


def _strides(fake: Tensor, dims: int) -> list[int]:
    """Returns dense strides with the first dimensions innermost."""
    strides, reach = [0] * fake.dim(), 1
    for dim in reversed(_inwards(fake, dims)):
        strides[dim] = reach
        reach *= max(1, fake.shape[dim])
    return strides
