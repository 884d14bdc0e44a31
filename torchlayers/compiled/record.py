"""A function recorded: the plain operators that reach the bottom of the stack."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torchlayers import torch_compile, tree

# torch.fx patches modules for as long as it records, for all threads.
recording = threading.RLock()


class Recording(NamedTuple):
    """What a function did to tensors of given shapes.

    ``graph`` takes the arguments' tensors and then the captured ones, and returns the result's
    leaves in a list. Each node has what it computes as a fake tensor in ``meta["val"]``.
    """

    graph: GraphModule
    captured: list[Tensor]
    out_spec: tree.TreeSpec


def record(func: Callable[..., Any], args: Sequence[Any]) -> Recording:
    """func(*args) through the layers, once, on fake tensors.

    Args:
        func: any function of tensors.
        args: tensors or pytrees of tensors.
    """
    leaves, spec = tree.flatten(tuple(args))
    out_spec = None

    def flat(*given: Any) -> list[Any]:
        nonlocal out_spec
        outputs, out_spec = tree.flatten(func(*tree.unflatten(given, spec)))
        return outputs

    with recording, torch_compile.run_eagerly():
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    assert out_spec is not None
    return Recording(graph, _captured_as_inputs(graph), out_spec)


def _captured_as_inputs(graph: GraphModule) -> list[Tensor]:
    """The tensors that the graph holds as constants, each made an input, in this order."""
    captured: dict[str, Tensor] = {}
    inputs: dict[str, Node] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1:]
    for node in graph.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if not isinstance(held := getattr(graph, name), Tensor):
            continue
        if name not in inputs:
            captured[name] = held
            after = [*last, *inputs.values()][-1:]
            with graph.graph.inserting_after(*after) if after else graph.graph.inserting_before():
                inputs[name] = graph.graph.placeholder(name)
            inputs[name].meta = dict(node.meta)
        node.replace_all_uses_with(inputs[name])
        graph.graph.erase_node(node)
    for name in captured:
        delattr(graph, name)
    graph.recompile()
    return [*captured.values()]
