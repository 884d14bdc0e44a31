"""Replays the unsimplified graph of a differentiated function, forward and backward separately.

The backward recomputes the forward. The halves of the simplified, partitioned graph are compared
with these, and replaced by them if they are wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.passes.dead_code import drop_dead
from torchlayers.compiler.passes.graph_queries import (
    generators_of,
    half_precision,
    inputs_of,
    outputs_of,
)
from torchlayers.compiler.passes.uninitialized_results import uninitialized_results
from torchlayers.compiler.runtime.backends import below_autograd
from torchlayers.compiler.runtime.verify import written_positions
from torchlayers.core.device import RandomState
from torchlayers.fx.program import replay

Again = Callable[[Sequence[Tensor], list[Tensor], Any], Sequence[Any]]


class ReplayedGraph:
    """The counterpart of a DifferentiableGraph that replays the unsimplified graph."""

    def __init__(
        self,
        captured_graph: CapturedGraph,
        numbers_read: Callable[[], Any],
        pull_back_again: Again,
    ) -> None:
        assert captured_graph.gradients is not None
        self.gradients = captured_graph.gradients
        self.results = captured_graph.computed
        self.draws = generators_of(captured_graph.graph)
        self.half = half_precision(captured_graph.graph)
        self.uninitialized = uninitialized_results(captured_graph.graph)
        self.written = written_positions(captured_graph.graph)
        count = len(inputs_of(captured_graph.graph)) - len(self.gradients.of_outputs)
        self.saved_inputs = [None if i in self.written else i for i in range(count)]
        self.numbers_read = numbers_read
        self.pull_back_again = pull_back_again
        self.forward = below_autograd(replay(_forward(captured_graph.graph, count, self.results)))
        self._both = below_autograd(replay(captured_graph.graph))

    def run_forward(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Returns the results, and then the inputs with their values from before the call."""
        saved = [tensor.clone() if i in self.written else tensor for i, tensor in enumerate(inputs)]
        return [*self.forward(inputs), *saved]

    def pull_back(
        self, saved: list[Tensor], cotangents: list[Tensor], random: RandomState | None
    ) -> Sequence[Any]:
        inputs = [tensor.clone() if i in self.written else tensor for i, tensor in enumerate(saved)]
        if random is None:
            return self.reverse(inputs, cotangents)
        with random.restored():
            return self.reverse(inputs, cotangents)

    def reverse(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Any]:
        """Returns the gradients; repeats the forward's writes to the inputs and its draws."""
        return self._both([*inputs, *cotangents])[self.results :]


def _forward(recorded: GraphModule, inputs: int, results: int) -> GraphModule:
    """Returns the graph without the nodes that depend on cotangents."""
    cotangents = inputs_of(recorded)[inputs:]
    reverse = {*cotangents}
    for node in recorded.graph.nodes:
        if not reverse.isdisjoint(node.all_input_nodes):
            reverse.add(node)
    forward, known = Graph(), dict[Node, Node]()
    for node in recorded.graph.nodes:
        if node.op != "output" and node not in reverse:
            known[node] = forward.node_copy(node, known.__getitem__)
    forward.output([known.get(node, node) for node in outputs_of(recorded)[:results]])
    graph = GraphModule(recorded, forward)
    drop_dead(graph)
    return graph
