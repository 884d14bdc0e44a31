"""Computes costly values that don't depend on a batch once, not once per sample.

A compiler that fuses an operator into its reader computes it as often as it is read: a factor of
each of 80 samples, 80 times. Such a value is materialized in memory instead.
"""

import torch
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import (
    emit,
    is_tensor,
    replace_uses,
    statically_true,
    value,
    view_base,
)

# Operators that take longer than reading their result from memory.
COSTLY = {
    aten.acos.default, aten.asin.default, aten.atan.default, aten.atan2.default, aten.cos.default,
    aten.cosh.default, aten.digamma.default, aten.div.Tensor, aten.div.Scalar, aten.erf.default,
    aten.erfc.default, aten.exp.default, aten.exp2.default, aten.expm1.default,
    aten.gather.default, aten.gelu.default, aten.index.Tensor, aten.index_select.default,
    aten.lgamma.default, aten.log.default, aten.log1p.default, aten.pow.Scalar,
    aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.reciprocal.default, aten.rsqrt.default,
    aten.sigmoid.default, aten.silu.default, aten.sin.default, aten.sinh.default,
    aten.softplus.default, aten.sqrt.default, aten.tan.default, aten.tanh.default,
}  # fmt: skip
FUSED = {aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.clone.default}
TIMES = 4  # how often each element has to be read at least
LANES = 16  # elements that an instruction computes at a time, in single precision


def compute_once(graph: GraphModule) -> None:
    """Materializes costly values that are broadcast to larger ones. Exact."""
    costly: set[Node] = set()
    for node in list(graph.graph.nodes):
        if not is_fused(node):
            continue
        read = {
            node_read for node_read in map(_computed, node.all_input_nodes) if node_read is not None
        }
        if node.target in COSTLY or read & costly:
            costly.add(node)
        for node_read in read & costly:
            if statically_true(value(node_read).numel() * TIMES <= value(node).numel()):
                give_memory(node_read, list(value(node_read).stride()))
                costly.discard(node_read)


def _computed(node: Node) -> Node | None:
    """Returns the node behind views if it is fused; None if it is in memory anyway."""
    if not is_tensor(node):
        return None
    while (viewed := view_base(node)) is not None:
        node = viewed
    return node if is_fused(node) else None


def is_fused(node: Node) -> bool:
    """Whether a compiler would compute the node where it is read."""
    if node.op != "call_function" or not is_tensor(node):
        return False
    return node.target in FUSED or (
        isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
    )


def give_memory(node: Node, strides: list[int]) -> Node:
    """Materializes the node with these strides, and has its readers read the result."""
    users = list(node.users)
    saved = in_memory(node.next, node, strides)
    replace_uses(users, node, saved)
    return saved


def in_memory(before: Node, node: Node, strides: list[int]) -> Node:
    """Returns the node's value in separate memory with these strides."""
    # Looked up here, as it is slow to import.
    force_stride_order = lookup("torch._inductor.inductor_prims.force_stride_order")
    return emit(before, force_stride_order, node, strides)
