"""What nobody reads is not computed."""

from torch.fx import GraphModule

from torchlayers.compiled.simplify.nodes import has_effect


def drop_dead(graph: GraphModule) -> None:
    """Random operators stay: the draws after them would be others. So does what writes."""
    for node in reversed(graph.graph.nodes):
        if not node.users and not has_effect(node):
            graph.graph.erase_node(node)
