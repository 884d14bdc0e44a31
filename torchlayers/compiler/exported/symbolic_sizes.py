"""Replaces symbolic numbers in a captured graph by operators that compute them.

In a graph captured with symbolic sizes, an operator's arguments contain SymInts, which only their
capture's ShapeEnv understands. torch.export traces the graph again with its own symbols, so each
such number is computed there, from the sizes of the graph's inputs.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.errors import TransformError
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import value
from torchlayers.fx.size_steps import SYMBOLIC, expression_of

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Pow": operator.pow,
}


def compute_sizes(graph: GraphModule) -> None:
    """Replaces the symbolic numbers of a graph, and of the graphs of its branches and loops.

    Raises:
        TransformError: a number is not a polynomial or a quotient of the sizes of inputs.
    """
    for module in graph.modules():
        if isinstance(module, GraphModule):
            _SizeNodes(module).replace()
            module.recompile()


def _sizes(fake: Tensor) -> list[Any]:
    return [*fake.shape]


class _SizeNodes:
    """The nodes that compute sizes in one graph, by their expressions."""

    def __init__(self, module: GraphModule) -> None:
        self._graph = module.graph
        self._nodes: dict[Any, Any] = {}
        self._inputs = [
            (node, dim, expression_of(size))
            for node in module.graph.find_nodes(op="placeholder")
            if isinstance(fake := value(node), Tensor)
            for dim, size in enumerate(_sizes(fake))
            if isinstance(size, SYMBOLIC)
        ]
        inputs = [*module.graph.find_nodes(op="placeholder")]
        self._last_input = inputs[-1] if inputs else None
        self._last_size = self._last_input

    def replace(self) -> None:
        for node in [*self._graph.nodes]:
            if node.op == "call_function":
                node.args = self._with_nodes(node.args)
                node.kwargs = self._with_nodes(node.kwargs)

    def _with_nodes(self, argument: Any) -> Any:
        if isinstance(argument, SYMBOLIC):
            return self._node_of(expression_of(argument))
        if isinstance(argument, (list, tuple)):
            return type(argument)([*map(self._with_nodes, argument)])
        if isinstance(argument, dict):
            return {key: self._with_nodes(inner) for key, inner in argument.items()}
        if isinstance(argument, slice):
            return slice(*map(self._with_nodes, (argument.start, argument.stop, argument.step)))
        return argument

    def _node_of(self, expression: Any) -> Any:
        if expression not in self._nodes:
            self._nodes[expression] = self._compute(expression)
        return self._nodes[expression]

    def _compute(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        for node, dim, size in self._inputs:
            if size == expression:
                return self._emit(aten.sym_size.int, node, dim)
        function = _ARITHMETIC.get(type(expression).__name__)
        if function is None:
            raise TransformError(
                f"torchlayers: export: a size in the graph is {expression}, which can't be "
                "computed from the sizes of the arguments. Export with that size fixed (dynamic)."
            )
        operands = [*map(self._node_of, expression.args)]
        return functools.reduce(functools.partial(self._emit, function), operands)

    def _emit(self, function: Callable[..., Any], *args: Any) -> Node:
        if not any(isinstance(arg, Node) for arg in args):
            return function(*args)  # type: ignore[no-any-return]
        assert self._last_size is not None
        with self._graph.inserting_after(self._last_size):
            self._last_size = self._graph.call_function(function, args)
        return self._last_size
