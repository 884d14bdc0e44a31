"""Tells which values of a captured graph depend on constants that it captured."""

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.entries.entry_writer import CONSTANT
from torchlayers.compiler.passes.known_constants import FACTORIES, FILLED
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import is_random, is_tensor, value
from torchlayers.fx.writes import is_write

# Kinds of nodes: computed from numbers alone; from captured constants, and perhaps numbers; from no
# captured constants; and from these and others.
NUMBER, FIXED, VARYING, MIXED = "number", "constant", "varying", "mixed"
KNOWN = {NUMBER, FIXED}
_FACTORIES = {*FACTORIES, *FILLED, aten.arange.default, aten.arange.start, aten.eye.default}


def kinds_of(graph: GraphModule) -> dict[Node, str]:
    """The kind of each node. Floating-point constants are left to vary: they are few."""
    kinds: dict[Node, str] = {}
    for node in graph.graph.nodes:
        kinds_of_operands = {kinds[operand] for operand in node.all_input_nodes}
        if node.op == "placeholder":
            is_constant = CONSTANT in node.meta and not value(node).is_floating_point()
            kinds[node] = FIXED if is_constant else VARYING
        elif not is_tensor(node) or not isinstance(node.target, OpOverload):
            kinds[node] = VARYING if kinds_of_operands <= {VARYING, NUMBER} else MIXED
        elif is_random(node) or is_write(node):
            kinds[node] = VARYING
        elif kinds_of_operands <= {NUMBER} and (kinds_of_operands or node.target in _FACTORIES):
            kinds[node] = NUMBER
        elif kinds_of_operands and kinds_of_operands <= KNOWN:
            kinds[node] = FIXED
        elif kinds_of_operands <= {VARYING, NUMBER}:
            kinds[node] = VARYING
        else:
            kinds[node] = MIXED
    return kinds
