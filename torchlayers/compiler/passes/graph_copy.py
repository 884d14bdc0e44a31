"""Copies a captured graph, so that a pass can change one and leave the other."""

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from torchlayers.core.private_names import lookup


def copied(graph: GraphModule) -> GraphModule:
    copy, known = Graph(), dict[Node, Node]()
    for node in graph.graph.nodes:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), known.__getitem__)
        new = known[node] = copy.create_node(node.op, node.target, (), {}, node.name, node.type)
        new.args, new.kwargs = args, kwargs  # set here: create_node warns about symbolic sizes
        new.meta = {**node.meta}
    lazy = lookup("torch.fx._lazy_graph_module._LazyGraphModule", GraphModule)
    return lazy(graph, copy)  # type: ignore[no-any-return]
