"""Finds the values in a captured graph that need the strides they had as fake tensors.

NOTE [Recorded strides]
A graph's views were captured on fake tensors, with the strides that torch's fake kernels report for
results. Some real kernels return other strides (softplus_backward, copysign), for which a view may
be invalid; uncompiled code would have made a copy. Therefore a value that is viewed by sizes or
strides is copied to its captured strides where it is computed, before anything reads it: views then
alias it as they did in the capture, and writes through them reach it. The strides nearly always
match already, and then the value is left alone.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import BY_STRIDES, memory_of, value

_BY_LAYOUT = BY_STRIDES | {
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
}
STRIDES = "strides"  # a key in node.meta, for nodes without a fake value


def required_strides(graph: GraphModule) -> dict[Node, tuple[int, ...]]:
    """The values with views that depend on strides, and the strides they were captured with."""
    views = (
        view
        for target in _BY_LAYOUT
        for view in graph.graph.find_nodes(op="call_function", target=target)
    )
    sources = {memory_of(view.args[0]) for view in views if isinstance(view.args[0], Node)}
    return {node: strides for node in sources if (strides := strides_of(node)) is not None}


def strides_of(node: Node) -> tuple[int, ...] | None:
    """The strides of the node's value, or None if it is not a tensor with strides."""
    fake: Any = value(node)
    if isinstance(fake, Tensor) and fake.layout is torch.strided:
        return fake.stride()
    return node.meta.get(STRIDES)
