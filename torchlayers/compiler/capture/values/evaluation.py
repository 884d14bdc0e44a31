"""Computes values of nodes while they are captured, on the tensors of the call.

The operators captured so far run in order, each once, as they would without capture: random numbers
are drawn from the generators, whose states are restored in the end, and an input that the function
writes to is replaced by a copy.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from torchlayers.core.device import RandomState, has_data
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import FakeTensor, dispatch_modes, torch_c
from torchlayers.fx.debug_ops import DEBUG_OPS
from torchlayers.fx.nodes import has_strides, is_collective, is_random, is_tensor, memory_of
from torchlayers.fx.program import replay
from torchlayers.fx.writes import is_write, written_by


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, operators are neither captured nor differentiated nor cast."""
    with (
        torch.no_grad(),
        torch_c._DisableAutocast(),
        dispatch_modes._disable_current_modes(),
        torch.DisableTorchFunction(),
    ):
        yield


class NoValueError(Exception):
    """The reason why a node has no value while it is captured."""


class Evaluation:
    """The values of the nodes of the graph that is being captured.

    Args:
        root: the module that holds the graph's attributes.
    """

    def __init__(self, root: Module) -> None:
        self._root = root
        self._inputs: dict[Node, Tensor] = {}
        self._values: dict[Node, Any] = {}
        self._last: Node | None = None  # the last node that has run
        self._seen: Node | None = None  # the last node that was asked what it writes to
        self._written: set[Node] = set()  # what allocated the memory that is written to
        self._copied: set[Node] = set()  # inputs that are written to, or share memory with such
        self._copies: dict[Any, Tensor] = {}  # by storage or attribute
        self._random: list[RandomState] = []  # from before first draws

    def add_input(self, node: Node, value: Tensor) -> None:
        self._inputs[node] = value

    def values(self, nodes: Sequence[Node]) -> list[Any]:
        """Returns the values that these nodes of the graph have now.

        Raises:
            NoValueError: they depend on something that has no value yet.
        """
        if nodes:
            written = self._written_inputs(nodes[0].graph)
            if written - self._copied:  # the copies have to be there from the start
                self._copied |= written
                self._values.clear()
                self._copies.clear()
                self._last = None
                self.restore()
            self._run([*_nodes_after(self._last, nodes[0].graph)])
        if any(node not in self._values for node in nodes):
            raise NoValueError("it depends on a cotangent")
        return [self._values[node] for node in nodes]

    def put(self, node: Node, value: Any) -> None:
        """Notes the value of the graph's last node, which has been computed already."""
        self._values[node] = value
        self._last = node

    def restore(self) -> None:
        """Restores the random generators to their states before the first draws."""
        for state in reversed(self._random):
            state.restore()
        self._random.clear()

    def _written_inputs(self, graph: Graph) -> set[Node]:
        """The inputs whose memory is written to, with those that share that memory."""
        for node in _nodes_after(self._seen, graph):
            self._seen = node
            if is_write(node):
                self._written.update(map(memory_of, written_by(node)))
        written = self._written & self._inputs.keys()
        memories = {storage_of(self._inputs[node]) for node in written}
        if not memories:
            return set()
        return {node for node, value in self._inputs.items() if storage_of(value) in memories}

    def _run(self, nodes: list[Node]) -> None:
        if not nodes:
            return
        if (node := next(filter(is_collective, nodes), None)) is not None:
            raise NoValueError(f"{node.target} waits for other ranks")
        with plainly():
            self._save_random_state(nodes)
            run = self._computable(nodes)
            inputs = [*dict.fromkeys(n for node in run for n in node.all_input_nodes)]
            inputs = [node for node in inputs if node in self._values]
            program, computed = _program(self._root, inputs, run)
            results = program([self._values[node] for node in inputs])
        self._values.update(zip(computed, results, strict=True))
        self._last = nodes[-1]

    def _computable(self, nodes: list[Node]) -> list[Node]:
        """The nodes to run: not those that depend on the cotangents of a later reverse pass."""
        run: dict[Node, None] = {}
        for node in nodes:
            inputs = node.all_input_nodes
            if not self._has_value(node) and all(n in run or n in self._values for n in inputs):
                run[node] = None
        return [*run]

    def _save_random_state(self, nodes: list[Node]) -> None:
        if any(map(is_random, nodes)):
            attributes = vars(self._root).values()
            self._random.append(
                RandomState([x for x in attributes if isinstance(x, torch.Generator)])
            )

    def _has_value(self, node: Node) -> bool:
        """Whether the node is an input or a constant, whose value this notes."""
        if node.op == "get_attr":
            value = getattr(self._root, str(node.target))
            if isinstance(value, Tensor):
                key = str(node.target)
                self._values[node] = self._copies.setdefault(key, value.clone())
            return isinstance(value, Tensor)
        if node.op != "placeholder":
            return node.target in DEBUG_OPS
        if node in self._inputs:
            value = self._inputs[node].detach()
            if isinstance(value, FakeTensor) or not has_data(value):
                raise NoValueError("an input is a tensor without data")
            self._values[node] = self._copy(value) if node in self._copied else value
        return True

    def _copy(self, value: Tensor) -> Tensor:
        """Copies an input; copies of inputs that share memory share memory."""
        if not has_strides(value):
            return value.clone()
        key = storage_of(value), value.dtype
        if key not in self._copies:
            size = value.untyped_storage().nbytes() // value.element_size()
            self._copies[key] = value.as_strided([size], [1], 0).clone()
        return self._copies[key].as_strided(value.shape, value.stride(), value.storage_offset())


def _nodes_after(node: Node | None, graph: Graph) -> Iterator[Node]:
    """Yields the nodes of the graph after this one, or all."""
    node = graph._root.next if node is None else node.next
    while node.op != "root":
        yield node
        node = node.next


class _Replayed(GraphModule):
    """A graph that is only replayed: for its ``forward`` torch would write and compile Python."""

    def recompile(self) -> Any:
        return None


def _program(root: Module, inputs: list[Node], nodes: list[Node]) -> tuple[Any, list[Node]]:
    """The program that runs the nodes, and those whose values it returns."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for i, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{i}")
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    computed = [node for node in nodes if is_tensor(node) and node.op == "call_function"]
    graph.output([copies[node] for node in computed])
    return replay(_Replayed(root, graph)), computed
