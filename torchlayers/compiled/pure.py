"""A recording's graph without writes but to its inputs, at its end."""

from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torchlayers import torch_func
from torchlayers.compiled.graphs import inputs_of, is_functional, operators
from torchlayers.compiled.record import recording

_SAME = (
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh_copy.default,
)


def pure(graph: GraphModule) -> GraphModule:
    """Where it writes to an input, that is a copy_ before its output."""
    if not is_functional(graph):
        values = [node.meta["val"] for node in inputs_of(graph)]
        names = [node.target for node in inputs_of(graph)]
        fake: Any = values[0].fake_mode
        with recording, fake, torch.no_grad():
            functional = torch_func.functionalize(lambda *given: graph(*given))
            graph = make_fx(functional, tracing_mode="real")(*values)
        for node, name in zip(inputs_of(graph), names, strict=True):
            node.target = name
            node._rename(str(name))
    for node in [*operators(graph)]:
        if node.target in _SAME:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
