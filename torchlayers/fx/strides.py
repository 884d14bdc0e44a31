"""What in a recording has to lie in memory as it did on fake tensors.

NOTE [Recorded strides]
A recording's views were made on fake tensors, with the strides that torch says its operators'
results have. Some kernels lay them out otherwise (softplus_backward's, copysign's), and then what
they return may have no such view; uncompiled code would have made a copy. So a value that is viewed
by sizes or strides gets those that it was recorded with where it is made, before anything reads it:
views share memory with it as they were recorded to, and what is written through them is written to
it. Nearly always it has them, and is looked at and left alone.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.fx.nodes import BY_STRIDES, memory_of, value

_aten = torch.ops.aten
_BY_LAYOUT = BY_STRIDES | {
    _aten.view.default,
    _aten.view.dtype,
    _aten.view_as_complex.default,
    _aten._unsafe_view.default,
    _aten._reshape_alias.default,
}
STRIDES = "strides"  # in a node's meta, where that has no fake value


def relied_on(graph: GraphModule) -> dict[Node, tuple[int, ...]]:
    """The values that are viewed in ways that their strides allow, with the strides recorded."""
    views = (
        view
        for target in _BY_LAYOUT
        for view in graph.graph.find_nodes(op="call_function", target=target)
    )
    made = {memory_of(view.args[0]) for view in views if isinstance(view.args[0], Node)}
    return {node: strides for node in made if (strides := strides_of(node)) is not None}


def strides_of(node: Node) -> tuple[int, ...] | None:
    """None where it is no tensor, or one without strides."""
    held: Any = value(node)
    if isinstance(held, Tensor) and held.layout is torch.strided:
        return held.stride()
    return node.meta.get(STRIDES)
