"""Captures a function, simplifies the graph, and compares the two graphs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes import simplify
from torchlayers.core import pytree
from torchlayers.fx.nodes import is_dense, same_layout


def operators(graph: GraphModule) -> list[str]:
    """Returns the names of the operators that the graph calls, in order."""
    return [
        str(node.target).split(".")[1]
        for node in graph.graph.nodes
        if node.op == "call_function" and str(node.target).startswith(("aten", "torchlayers"))
    ]


def same(
    func: Callable[..., Any], *args: Any, exact: bool = True, checked: bool = True, **options: Any
) -> GraphModule:
    """Simplifies the captured graph; fails where results, writes, strides or fake values differ.

    Without ``checked``, the strides of intermediate values are not compared. Those of an operator's
    result may depend on its operands' strides along dimensions of size 1, which a pass may change.
    """
    captured_graph = record(func, args)
    graph = simplify(captured_graph.graph, **options)
    theirs, ours = _copied(args), _copied(args)
    torch.manual_seed(0)
    expected = captured_graph.graph(*pytree.leaves(theirs), *captured_graph.captured)
    torch.manual_seed(0)
    run = Checked(graph).run if checked else graph
    actual = run(*pytree.leaves(ours), *captured_graph.captured)
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other, exact)
        if isinstance(other, Tensor) and is_dense(other):
            assert same_layout(one, other)
    for one, other in zip(pytree.leaves(ours), pytree.leaves(theirs), strict=True):
        assert_same(one, other, exact)
    return graph


def assert_same(actual: Any, expected: Any, exact: bool) -> None:
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


class Checked(torch.fx.Interpreter):
    """Runs a graph, and compares each result with its fake value."""

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor):
            told = node.meta["val"]
            assert (result.shape, result.dtype) == (told.shape, told.dtype), node.format_node()
            if result.numel():
                strides = zip(result.shape, result.stride(), told.stride(), strict=True)
                assert all(size == 1 or a == b for size, a, b in strides), node.format_node()
        return result


def _copied(args: Any) -> Any:
    """Copies the tensors with their strides; elements that share memory still do in the copy."""

    def copy(tensor: Tensor) -> Tensor:
        memory, offset = tensor.untyped_storage().clone(), tensor.storage_offset()
        return tensor.new_empty(0).set_(memory, offset, tensor.size(), tensor.stride())

    return pytree.map_tensors(copy, args)
