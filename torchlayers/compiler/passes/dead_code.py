"""What nobody reads is not computed."""

import operator
from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.fx.custom_ops import lstm_layer
from torchlayers.fx.nodes import aten, calls, emit, has_effect, update, value

# Their last argument says which results are wanted.
MASKED = {
    aten.convolution_backward.default,
    aten.native_batch_norm_backward.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
}
_LSTM = lstm_layer._opoverload


def drop_dead(graph: GraphModule) -> None:
    """Random operators stay: the draws after them would be others. So does what writes."""
    for node in reversed(graph.graph.nodes):
        if not node.users and not has_effect(node):
            graph.graph.erase_node(node)


def drop_outputs(graph: GraphModule) -> None:
    """Exact: an operator with several results computes those that are read."""
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
    """An LSTM that nothing is pulled back through is torch's operator."""
    if all(calls(user, operator.getitem) and user.args[1] != 3 for user in node.users):
        node.target = aten.mkldnn_rnn_layer.default
        node.args = (*node.args[:8], [], *node.args[8:])


def _weight_of_no_value(node: Node) -> None:
    """Only the image's gradient takes the weight's elements; its size is all that is left."""
    weight: Any = node.args[2]
    if weight.op != "placeholder" and len(weight.users) == 1:
        told = value(weight)
        kind = {"dtype": told.dtype, "device": told.device, "pin_memory": False}
        empty = emit(node, aten.empty.memory_format, list(told.shape), **kind)
        update(node, *node.args[:2], empty, *node.args[3:])
