"""Finds results with uninitialized memory, in which two runs of the same graph may differ."""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.graph_queries import operators, outputs_of
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import calls, memory_of, value
from torchlayers.fx.writes import is_write, written_by

_ALLOCATIONS = (
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
_COPIES = (
    aten._to_copy.default,
    aten.cat.default,
    aten.clone.default,
    aten.stack.default,
)
# Operators with several results, and those results that may be left uninitialized.
_LEAVES = {
    "aten::_ctc_loss": (1,),  # log_alpha, beyond each sample's lengths
    "torchlayers::ctc_loss": (1,),
    # The random seed and offset, without dropout.
    "aten::_flash_attention_forward": (2, 3),
    "aten::_efficient_attention_forward": (2, 3),
    "aten::_scaled_dot_product_flash_attention": (6, 7),
    "aten::_scaled_dot_product_efficient_attention": (2, 3),
    "aten::_scaled_dot_product_cudnn_attention": (6, 7),
}


def uninitialized_results(graph: GraphModule, *, is_part: bool = False) -> frozenset[int]:
    """Returns the positions of the graph's results that have uninitialized elements.

    Memory that is written later, even in part, is excluded, as are values that operators compute
    from uninitialized elements.

    Args:
        is_part: whether the graph is a part of a function, and a later one may write the rest.
    """
    uninitialized = set[Node]()
    for node in operators(graph):
        if is_write(node):
            written = [source for source in written_by(node) if not is_part or _is_whole(source)]
            uninitialized.difference_update(map(memory_of, written))
        elif _is_left(node) or (
            calls(node, *_COPIES)
            and any(memory_of(source) in uninitialized for source in node.all_input_nodes)
        ):
            uninitialized.add(node)
    return frozenset(
        i
        for i, node in enumerate(outputs_of(graph))
        if isinstance(node, Node) and memory_of(node) in uninitialized
    )


def _is_whole(node: Node) -> bool:
    """Whether a node has all elements of its memory."""
    return bool(value(node).numel() == value(memory_of(node)).numel())


def _is_left(node: Node) -> bool:
    if calls(node, *_ALLOCATIONS):
        return True
    result: Any = node.args[0] if len(node.args) == 2 else None
    if isinstance(node.target, OpOverload) or not isinstance(result, Node):
        return False
    operator = result.target
    return isinstance(operator, OpOverload) and node.args[1] in _LEAVES.get(
        schema_of(operator).name, ()
    )
