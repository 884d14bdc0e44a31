"""Steps 5 and 6 for FX: splits the joint graph in two, with the indices of what is passed on."""

import operator
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import is_random
from torchlayers.graph.fx.joint_graph import JointGraph, ancestors_of
from torchlayers.graph.fx.normalize import is_view, value
from torchlayers.graph.fx.residuals import bytes_of


@dataclass
class Partitioned:
    f: GraphModule
    df: GraphModule
    captured_inputs: list[int]  # positions among f's inputs
    captured_outputs: list[int]  # positions among f's outputs
    captured: list[Node]  # in the order of df's inputs


def partition(joint: JointGraph, saved: set[Node], root: torch.nn.Module) -> Partitioned:
    """f returns the program's outputs and the saved values; df takes cotangents and the latter."""
    order = {node: i for i, node in enumerate(joint.graph.nodes)}
    in_order = sorted(saved, key=order.__getitem__)
    captured_inputs = [i for i, node in enumerate(joint.inputs) if node in saved]
    others = [node for node in in_order if node.op != "placeholder"]
    captured_outputs: list[int] = []
    temporaries: list[Node] = []
    for node in others:
        if node in joint.outputs:
            captured_outputs.append(joint.outputs.index(node))
        else:
            captured_outputs.append(len(joint.outputs) + len(temporaries))
            temporaries.append(_output_for(node, joint))
    captured = [joint.inputs[i] for i in captured_inputs] + others
    return Partitioned(
        f=_forward(joint, temporaries, root),
        df=_backward(joint, captured, root),
        captured_inputs=captured_inputs,
        captured_outputs=captured_outputs,
        captured=captured,
    )


def _output_for(node: Node, joint: JointGraph) -> Node:
    """Returns f's output for a captured value: a copy, if it is part of something larger.

    A view would keep all of the memory that it views alive.
    """
    whole = node
    while is_view(whole) or _is_item_of_views(whole):
        whole = whole.all_input_nodes[0]
    size, whole_size = bytes_of(value(node)), bytes_of(value(whole))
    if whole.op == "placeholder" or size is None or whole_size is None or size >= whole_size:
        return node
    with joint.graph.inserting_after(node):
        copy = joint.graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _is_item_of_views(node: Node) -> bool:
    return node.target is operator.getitem and is_view(node.all_input_nodes[0])


def _forward(joint: JointGraph, temporaries: list[Node], root: torch.nn.Module) -> GraphModule:
    writer = _Writer()
    for node in joint.inputs:
        writer.input(node)
    outputs = [*joint.outputs, *temporaries]
    in_use = ancestors_of(node for node in outputs if isinstance(node, Node))
    for node in joint.graph.nodes:
        # Random operators stay in the program's order, and draw even if they are unused.
        if node in in_use or (node in joint.primal and is_random(node)):
            writer.write(node)
    writer.graph.output(tuple(fx.node.map_arg(outputs, writer.write)))
    return _module(writer.graph, root, "Forward")


def _backward(joint: JointGraph, captured: list[Node], root: torch.nn.Module) -> GraphModule:
    writer = _Writer()
    for _, node in joint.cotangents:
        writer.input(node)
    for node in captured:
        writer.input(node)
    for node in joint.needed():
        if node in joint.reverse:
            writer.write(node)
    outputs = fx.node.map_arg([gradient for _, gradient in joint.gradients], writer.write)
    writer.graph.output(tuple(outputs))
    return _module(writer.graph, root, "Backward")


class _Writer:
    """Copies nodes into a new graph, each after its inputs."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.copied: dict[Node, Node] = {}

    def input(self, node: Node) -> None:
        if node not in self.copied:
            copy = self.graph.placeholder(node.name)
            copy.meta = dict(node.meta)
            self.copied[node] = copy

    def write(self, node: Node) -> Node:
        waiting = [node]
        while waiting:
            missing = [a for a in waiting[-1].all_input_nodes if a not in self.copied]
            if missing:
                waiting.extend(missing)
                continue
            last = waiting.pop()
            if last not in self.copied:
                self.copied[last] = self.graph.node_copy(last, self.copied.__getitem__)
                self._make_lenient(self.copied[last])
        return self.copied[node]

    def _make_lenient(self, node: Node) -> None:
        """Uses operators that take all strides and conjugates: a graph also runs on batches."""
        if node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node.target is aten.view_as_real.default:
            (argument,) = node.all_input_nodes
            with self.graph.inserting_before(node):
                resolved = self.graph.call_function(aten.resolve_conj.default, (argument,))
            resolved.meta = dict(argument.meta)
            node.args = (resolved,)


def _module(graph: fx.Graph, root: torch.nn.Module, name: str) -> GraphModule:
    return GraphModule(root, graph, class_name=name)
