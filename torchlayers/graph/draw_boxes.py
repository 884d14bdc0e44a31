"""The contents of a drawing of a Gradient: boxes in three roles, joined by values."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.graph.forward_backward import ForwardBackward

FORWARD, CAPTURED, BACKWARD = "forward", "captured", "backward"


@dataclass
class Box:
    name: str
    label: str
    role: str
    sources: list[str] = field(default_factory=list)  # the boxes whose values it takes


@dataclass
class _Step:
    results: list[str]
    label: str
    arguments: list[str]


@dataclass
class _ParsedGraph:
    """A graph of either kind: the names of its inputs and outputs, and its operators."""

    inputs: list[str]
    steps: list[_Step]
    outputs: list[str | None]


def boxes_of(gradient: ForwardBackward) -> list[Box]:
    """Returns both graphs as one: the captured values of f are the inputs of df."""
    f, df = _parse(gradient.f), _parse(gradient.df)
    captured = [f.inputs[i] for i in gradient.captured_inputs]
    captured += [f.outputs[i] or "" for i in gradient.captured_outputs]
    boxes: dict[str, Box] = {}
    maker: dict[str, str] = {}  # the box of each value

    def add(key: str, label: str, role: str, results: list[str], arguments: list[str]) -> None:
        sources = dict.fromkeys(maker[a] for a in arguments if a in maker)
        boxes[key] = Box(key, label, role, list(sources))
        maker.update(dict.fromkeys(results, key))

    def role_of(results: list[str]) -> str:
        return CAPTURED if any(name in captured for name in results) else FORWARD

    for name in f.inputs:
        add(f"f:{name}", f"input {name}", role_of([name]), [name], [])
    for i, step in enumerate(f.steps):
        add(f"f{i}", step.label, role_of(step.results), step.results, step.arguments)
    for i, output in enumerate(f.outputs[: gradient.real_outputs]):
        if output is not None:
            add(f"f:out{i}", f"output {i}", FORWARD, [], [output])

    cotangents = len(gradient.input_vjps)
    box_of_input = {df.inputs[cotangents + i]: maker.get(name) for i, name in enumerate(captured)}
    maker = {name: box for name, box in box_of_input.items() if box is not None}
    for name, place in zip(df.inputs, gradient.input_vjps, strict=False):
        add(f"df:{name}", f"cotangent of output {place}", BACKWARD, [name], [])
    for i, step in enumerate(df.steps):
        add(f"df{i}", step.label, BACKWARD, step.results, step.arguments)
    for output, place in zip(df.outputs, gradient.output_vjps, strict=False):
        if output is not None:
            add(f"df:out{place}", f"gradient of input {place}", BACKWARD, [], [output])
    return list(boxes.values())


def _parse(graph: Any) -> _ParsedGraph:
    return _read_fx(graph) if isinstance(graph, GraphModule) else _read_script(graph)


def _read_fx(module: GraphModule) -> _ParsedGraph:
    read = _ParsedGraph([], [], [])
    alias: dict[Node, str] = {}  # a getitem is drawn as the operator that it takes a result of
    for node in module.graph.nodes:
        arguments = [alias.get(a, a.name) for a in node.all_input_nodes]
        if node.op == "placeholder":
            read.inputs.append(node.name)
        elif node.op == "output":
            read.outputs = [
                alias.get(leaf, leaf.name) if isinstance(leaf, Node) else None
                for leaf in node.args[0]
            ]
        elif node.target is operator.getitem:
            alias[node] = arguments[0]
        else:
            target = getattr(node.target, "overloadpacket", node.target)
            label = getattr(target, "__name__", str(target))
            read.steps.append(_Step([node.name], label, arguments))
    return read


def _read_script(graph: torch.Graph) -> _ParsedGraph:
    read = _ParsedGraph([value.debugName() for value in graph.inputs()], [], [])
    for node in graph.nodes():
        if node.kind() == "prim::Constant":
            continue
        results = [value.debugName() for value in node.outputs()]
        label = node.kind().removeprefix("aten::")
        read.steps.append(_Step(results, label, list(_names_used(node))))
    outputs = list(graph.outputs())
    packed = outputs[0].node() if len(outputs) == 1 else None
    if packed is not None and packed.kind() == "prim::TupleConstruct":
        outputs = list(packed.inputs())
        read.steps = [step for step in read.steps if step.results != [packed.output().debugName()]]
    read.outputs = [value.debugName() for value in outputs]
    return read


def _names_used(node: Any) -> Iterator[str]:
    """Yields the names of the values that a TorchScript node reads, including in its blocks."""
    for value in node.inputs():
        yield value.debugName()
    for block in node.blocks():
        for inside in block.nodes():
            yield from _names_used(inside)
