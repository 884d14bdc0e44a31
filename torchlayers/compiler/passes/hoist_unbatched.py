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
from torchlayers.transforms.layers.rule_table import is_function_of_one

# Operators that take longer than reading their result from memory, beside the curved elementwise
# ones of one tensor, such as exp.
COSTLY = {
    aten.atan2.default, aten.div.Scalar, aten.div.Tensor, aten.gather.default, aten.index.Tensor,
    aten.index_select.default, aten.pow.Scalar, aten.pow.Tensor_Tensor,
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
        if node.target in COSTLY or is_function_of_one(node.target) or read & costly:
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
