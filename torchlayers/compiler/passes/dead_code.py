"""Removes unread nodes, and unread results of operators that have several."""

import operator
from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.custom_ops import lstm_layer
from torchlayers.fx.nodes import calls, emit, has_effect, update, value

# The last argument is a mask of the results to compute.
MASKED = {
    aten.convolution_backward.default,
    aten.native_batch_norm_backward.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
}
_LSTM = lstm_layer._opoverload


def drop_dead(graph: GraphModule) -> None:
    """Keeps writes, and random operators: without one, later draws would differ."""
    for node in reversed(graph.graph.nodes):
        if not node.users and not has_effect(node):
            graph.graph.erase_node(node)


def drop_outputs(graph: GraphModule) -> None:
    """Has operators with several results compute only those that are read. Exact."""
    for node in graph.graph.nodes:
        if calls(node, _LSTM):
            _keep_nothing_unread(node)
        if node.target not in MASKED or node.kwargs:
            continue
        read = {user.args[1] for user in node.users if calls(user, operator.getitem)}
        mask: Any = node.args[-1]
        wanted = [want and at in read for at, want in enumerate(mask)]
        if wanted != list(mask):
            update(node, *node.args[:-1], wanted)
        if calls(node, aten.convolution_backward.default) and not wanted[0]:
            _weight_of_no_value(node)


def _keep_nothing_unread(node: Node) -> None:
    """Replaces an LSTM without a backward pass (result 3 is unread) with torch's operator."""
    if all(calls(user, operator.getitem) and user.args[1] != 3 for user in node.users):
        node.target = aten.mkldnn_rnn_layer.default
        node.args = (*node.args[:8], [], *node.args[8:])


def _weight_of_no_value(node: Node) -> None:
    """Replaces the weight with an empty one: only the image's gradient reads more than its size."""
    weight: Any = node.args[2]
    if weight.op != "placeholder" and len(weight.users) == 1:
        fake = value(weight)
        kind = {"dtype": fake.dtype, "device": fake.device, "pin_memory": False}
        empty = emit(node, aten.empty.memory_format, list(fake.shape), **kind)
        update(node, *node.args[:2], empty, *node.args[3:])
