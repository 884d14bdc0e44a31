"""Finds nodes with the same number in each element: zeros, ones, and values computed from them."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import is_random, is_tensor, value

Known = dict[Node, Any]

# The number that a factory fills with, or (FILLED) the position of the argument that has it.
FACTORIES: dict[Any, Any] = {
    aten.zeros.default: 0,
    aten.ones.default: 1,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten._new_zeros_with_same_feature_meta.default: 0,
}
FILLED: dict[Any, int] = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.fill.Scalar: 1,
    aten.scalar_tensor.default: 0,
}
REARRANGED = {
    aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default,
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default,
    aten.transpose.int, aten.t.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int,
    aten.diagonal.default, aten.flip.default,
}  # fmt: skip
PADDED_WITH_ZEROS = {aten.select_backward.default, aten.slice_backward.default}
SUMS = {aten.sum.default, aten.sum.dim_IntList}


def number_of(node: Node, known: Known) -> Any:
    """Returns the number in each element, or None. ``known`` has the numbers of earlier nodes."""
    fake = value(node)
    if node.op != "call_function" or not isinstance(fake, Tensor) or is_random(node):
        return None
    if node.target in FACTORIES:
        return _as_element(FACTORIES[node.target], fake)
    if node.target in FILLED:
        place = FILLED[node.target]
        number = node.args[place] if place < len(node.args) else None
        return (
            _as_element(number, fake) if isinstance(number, (bool, int, float, complex)) else None
        )
    first: Any = node.args[0] if node.args else None
    if node.target in REARRANGED:
        return known.get(first)
    if node.target in PADDED_WITH_ZEROS:
        return known.get(first) if known.get(first) == 0 else None
    if node.target in SUMS:
        return _sum(first, known, fake)
    return _pointwise(node, known, fake)


def _sum(summed: Any, known: Known, fake: Tensor) -> Any:
    """Returns the sum if no order of additions rounds it."""
    if (number := known.get(summed)) is None or fake.is_complex() or fake.numel() == 0:
        return None
    count = value(summed).numel() // fake.numel()
    if isinstance(count, torch.SymInt):
        return None
    total = number * count
    is_exact = math.isfinite(total) and total == int(total) and abs(total) <= 2**24
    if not is_exact or _as_element(total, fake) != total:
        return None
    return _as_element(total, fake)


def _pointwise(node: Node, known: Known, fake: Tensor) -> Any:
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return None
    if not node.all_input_nodes or any(operand not in known for operand in node.all_input_nodes):
        return None
    args, kwargs = torch.fx.map_arg(
        (node.args, node.kwargs), lambda operand: _one_element(operand, known)
    )
    result = node.target(*args, **kwargs)
    return result.item() if isinstance(result, Tensor) and result.dtype == fake.dtype else None


def _one_element(node: Node, known: Known) -> Tensor:
    """Returns one element, with the node's number of dimensions: type promotion depends on it."""
    fake = value(node)
    return torch.full((1,) * fake.dim(), known[node], dtype=fake.dtype)


def _as_element(number: Any, fake: Tensor) -> Any:
    """Returns the number as an element of the tensor's dtype, or None if it can't be one."""
    if fake.is_quantized:
        return None
    try:
        return torch.tensor(number, dtype=fake.dtype).item()
    except (RuntimeError, OverflowError):
        return None


def is_identity(node: Any) -> bool:
    """Whether it is an identity matrix, transposed or not."""
    while isinstance(node, Node) and node.target in (aten.t.default, aten.alias.default):
        node = node.args[0]
    if not is_tensor(node) or node.target not in (aten.eye.default, aten.eye.m):
        return False
    sizes = value(node).shape
    return bool(sizes[0] == sizes[1])
