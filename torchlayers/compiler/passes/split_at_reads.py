"""Splits a captured graph where the function read values of tensors.

With n reads there are n + 1 parts. Part i has the operators between read i - 1 and read i, in
order, and returns the operands of read i. It also returns what later parts need: a part takes each
tensor that an earlier one computed as an input, and views of it are made anew, so that what shares
memory in the captured graph shares it here. If earlier parts wrote to the tensor, the input has the
values after the last write. No part but the last writes to the inputs of the call.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.values.reads import Read
from torchlayers.compiler.passes.graph_queries import inputs_of
from torchlayers.core.operators import aten
from torchlayers.fx.fake_tensors import fake_like
from torchlayers.fx.nodes import is_tensor, memory_of, value, view_base
from torchlayers.fx.writes import is_write, written_by


class Exported(NamedTuple):
    """A tensor that a part computes, or writes to, for later ones: the node, and the part."""

    name: str
    part: int


class Part(NamedTuple):
    """A part that ends with a read.

    Attributes:
        graph: takes ``inputs``; returns the operands of the read, and then ``exports``.
        inputs: indices of the captured graph's inputs, and what earlier parts computed.
        exports: what later parts take, apart from ``results``.
        perform: reads, from the graph's outputs.
        results: the tensors that the read returns.
    """

    graph: GraphModule
    inputs: list[int | Exported]
    exports: list[Exported]
    perform: Callable[[Sequence[Tensor]], Any]
    results: list[Exported]
    read: Read


class SplitGraph:
    """The parts of a captured graph with reads.

    Attributes:
        last: the index of the last part.
        written: the indices of the inputs that are written to.
    """

    def __init__(self, captured_graph: CapturedGraph) -> None:
        self._captured_graph = captured_graph
        self._graph = captured_graph.graph
        self._reads = captured_graph.reads
        gradients = captured_graph.gradients
        inputs = inputs_of(self._graph)
        count = len(inputs) - (len(gradients.of_outputs) if gradients is not None else 0)
        self._inputs = {node: i for i, node in enumerate(inputs[:count])}
        self._cotangents = inputs[count:]
        self._nodes: list[list[Node]] = [[] for _ in range(len(self._reads) + 1)]
        self._results: list[list[Node]] = [[] for _ in self._reads]
        self._part: dict[Node, int] = dict.fromkeys(self._inputs, -1)
        self._replace_layout_changes()
        self._sort_nodes()
        self._writes: dict[Node, list[int]] = {}
        for part, nodes in enumerate(self._nodes):
            for target in itertools.chain(*(written_by(node) for node in nodes if is_write(node))):
                self._writes.setdefault(memory_of(target), []).append(part)
        self.last = len(self._reads)
        self.written = [i for node, i in self._inputs.items() if node in self._writes]

    def _sort_nodes(self) -> None:
        places = {read.node: i for i, read in enumerate(self._reads)}
        part, last = 0, len(self._reads)
        reverse = {*self._cotangents}
        for node in self._graph.graph.nodes:
            source = node.all_input_nodes[0] if node.all_input_nodes else None
            if node in places:
                self._part[node] = part
                self._results[part] += [node] if is_tensor(node) else []
                part += 1
            elif source in places and not is_tensor(source):  # one of several results of a read
                self._part[node] = places[source]
                self._results[places[source]].append(node)
            elif node.op not in ("placeholder", "output") and not _is_profiled(node):
                # No read depends on cotangents, which the last part alone has.
                is_reverse = not reverse.isdisjoint(node.all_input_nodes)
                reverse |= {node} if is_reverse else set()
                self._part[node] = last if is_reverse else part
                self._nodes[self._part[node]].append(node)

    def _replace_layout_changes(self) -> None:
        """Replaces operators such as squeeze_ by the view that they make of a tensor.

        What follows them in the graph uses their results. A part that only has the tensor's memory
        makes the view anew.
        """
        for node in self._graph.graph.nodes:
            if torch.Tag.inplace_view in getattr(node.target, "tags", ()):
                packet = getattr(aten, node.target.overloadpacket.__name__.removesuffix("_"), None)
                view = getattr(packet, node.target._overloadname, None)
                if view is not None and view.is_view and memory_of(node) not in self._inputs:
                    node.target = view

    def source(self, memory: Node, part: int) -> int | Exported:
        """Where a part finds a tensor from before it: in an input, or in what a part computed."""
        writes = (place for place in self._writes.get(memory, ()) if place < part)
        last = max(self._part[memory], *writes, -1)
        return self._inputs[memory] if last < 0 else Exported(memory.name, last)

    def is_written_in(self, memory: Node, part: int) -> bool:
        return part in self._writes.get(memory, ())

    def last_part(self) -> tuple[CapturedGraph, list[Exported]]:
        """Returns what follows the last read, and what it takes after the captured tensors."""
        builder = _PartBuilder(self, self.last, [*self._inputs], self._cotangents)
        returned: Any = self._graph.graph.output_node().args[0]
        graph = builder.build(self._graph, self._nodes[-1], [*returned])
        exported = [source for source in builder.inputs if isinstance(source, Exported)]
        captured_graph = self._captured_graph._replace(
            graph=graph, reads=[], from_parts=len(exported)
        )
        return captured_graph, exported

    def part(self, place: int, needed: Iterable[Exported]) -> Part:
        """Returns the part that ends with the read of this index, for later parts that take these.

        What others computed is left out of its exports.
        """
        read = self._reads[place]
        results = self._returned(place)
        exports = [key for key in dict.fromkeys(needed) if key.part == place and key not in results]
        by_name = {node.name: node for node in self._part}
        operands = read.node.all_input_nodes
        outputs = [*operands, *(by_name[key.name] for key in exports)]
        builder = _PartBuilder(self, place)
        graph = builder.build(self._graph, self._nodes[place], outputs)
        return Part(graph, builder.inputs, exports, _performed(read.node), results, read)

    def code(self, place: int, sources: Sequence[Any]) -> str:
        """The operators of a part, with the read, as text: captures that compute the same have the
        same.

        Args:
            sources: where calls find the inputs of the captured graph.
        """

        def described(node: Node) -> _Name:
            if node.op == "get_attr":
                return _Name(_described(getattr(self._graph, str(node.target))))
            return _Name(sources[self._inputs[node]] if node in self._inputs else node.name)

        nodes = [*self._nodes[place], self._reads[place].node]
        return "\n".join(
            f"{node.name} {node.target} {map_arg((node.args, node.kwargs), described)}"
            for node in nodes
        )

    def _returned(self, place: int) -> list[Exported]:
        """The tensors that a read returns, whether or not the graph takes each of them."""
        node = self._reads[place].node
        if not self._results[place] or is_tensor(node):
            return [Exported(result.name, place) for result in self._results[place]]
        names = {result.args[1]: result.name for result in self._results[place]}
        count = len(value(node))
        return [Exported(names.get(i, f"{node.name}[{i}]"), place) for i in range(count)]


def _is_profiled(node: Node) -> bool:
    """Whether the node marks a range for the profiler, which a read may end."""
    return getattr(node.target, "namespace", "") == "profiler"


class _PartBuilder:
    """Builds the graph of one part.

    Args:
        inputs: for the last part, the inputs of the whole graph, to which it may write.
        cotangents: likewise.
    """

    def __init__(
        self,
        split: SplitGraph,
        place: int,
        inputs: Sequence[Node] = (),
        cotangents: Sequence[Node] = (),
    ) -> None:
        self._split = split
        self._place = place
        self._graph = Graph()
        self._last_input: Node | None = None
        self._copies: dict[Node, Node] = {}
        self.inputs: list[int | Exported] = []
        self._writable = {node: self._input(node, i) for i, node in enumerate(inputs)}
        self._is_last = place == split.last
        for node in cotangents:
            self._copies[node] = self._graph.node_copy(node)

    def build(
        self, root: GraphModule, nodes: Sequence[Node], returned: Sequence[Any]
    ) -> GraphModule:
        for node in self._writable:
            self._copy_of(node)
        for node in nodes:
            self._copies[node] = self._graph.node_copy(node, self._copy_of)
        self._graph.output([*map_arg([*returned], self._copy_of)])
        self._graph.eliminate_dead_code()
        if not self._is_last:
            self._drop_unread_inputs()
        return GraphModule(root, self._graph)

    def _copy_of(self, node: Node) -> Node:
        """The node's copy in this part; a view from an earlier part is made anew."""
        if node not in self._copies:
            viewed = view_base(node)
            if node.op == "get_attr":
                copy = self._graph.node_copy(node)
            elif viewed is None:
                copy = self._memory(node)
            elif is_write(node):
                copy = self._copy_of(viewed)
            else:
                copy = self._graph.node_copy(node, self._copy_of)
            self._copies[node] = copy
        return self._copies[node]

    def _memory(self, node: Node) -> Node:
        """A tensor from before this part; a copy where the part writes to what it must not."""
        source = self._split.source(node, self._place)
        ours = self._writable.get(node)
        if ours is not None:
            if isinstance(source, Exported):
                return self._emit(aten.copy_.default, ours, self._input(node, source))
            return ours
        copy = self._input(node, source)
        if self._split.is_written_in(node, self._place):
            copy = self._emit(aten.clone.default, copy)
        return copy

    def _input(self, node: Node, source: int | Exported) -> Node:
        self.inputs.append(source)
        before = self._last_input
        graph = self._graph
        with graph.inserting_before() if before is None else graph.inserting_after(before):
            placeholder = self._last_input = graph.placeholder(node.name)
        placeholder.target, placeholder.meta = placeholder.name, dict(node.meta)
        if isinstance(source, Exported):  # beside the input that has been written to
            placeholder.meta["val"] = fake_like(value(node).fake_mode, value(node))
        return placeholder

    def _emit(self, target: Any, *args: Node) -> Node:
        node = self._graph.call_function(target, args)
        fakes = [value(arg) for arg in args]
        with fakes[0].fake_mode:
            node.meta["val"] = fakes[0].clone() if len(fakes) == 1 else fakes[0]
        return node

    def _drop_unread_inputs(self) -> None:
        inputs = []
        placeholders = self._graph.find_nodes(op="placeholder")
        for node, source in zip([*placeholders], self.inputs, strict=True):
            if node.users:
                inputs.append(source)
            else:
                self._graph.erase_node(node)
        self.inputs = inputs


class _Output:
    """The place of an operand of a read among the outputs of a part."""

    def __init__(self, index: int) -> None:
        self.index = index


def _performed(read: Node) -> Callable[[Sequence[Tensor]], Any]:
    """Returns the function that reads, from the values of the read's operands."""
    target: Any = read.target
    operands = {node: _Output(i) for i, node in enumerate(read.all_input_nodes)}
    if target is aten._local_scalar_dense.default:
        return lambda outputs: outputs[0].item()  # many times faster than by the operator
    if read.args == (*operands,) and not read.kwargs and len(operands) == 1:
        return lambda outputs: target(outputs[0])
    args, kwargs = map_arg((read.args, read.kwargs), operands.__getitem__)  # type: ignore[arg-type]

    def perform(outputs: Sequence[Tensor]) -> Any:
        def fill(leaf: Any) -> Any:
            return outputs[leaf.index] if isinstance(leaf, _Output) else leaf

        filled: Any = map_aggregate((args, kwargs), fill)
        return target(*filled[0], **filled[1])

    return perform


def structure_of(graph: GraphModule) -> Any:
    """A key that is equal for graphs that compute the same from inputs with the same metadata."""
    places: dict[Node, str] = {}
    lines = []
    for node in graph.graph.nodes:
        places[node] = f"%{len(places)}"
        target: Any = node.target
        if node.op == "placeholder":
            target = _metadata(value(node))
        elif node.op == "get_attr":
            target = _described(getattr(graph, target))
        elif callable(target):
            target = f"{target} {id(target)}"
        operands = map_arg((node.args, node.kwargs), lambda read: _Name(places[read]))
        lines.append(f"{node.op} {target} {operands}")
    return "\n".join(lines)


def _described(attribute: Any) -> str:
    """Describes an attribute of a graph: the body of a loop, a generator."""
    if isinstance(attribute, GraphModule):
        return f"[{structure_of(attribute)}]"
    return str(id(attribute))


class _Name(str):
    """A name that is shown without quotes."""

    __repr__ = str.__str__


def _metadata(x: Any) -> Any:
    layout = x.stride() if hasattr(x, "stride") and x.layout.__str__() == "torch.strided" else None
    return tuple(x.shape), x.dtype, x.device, layout
