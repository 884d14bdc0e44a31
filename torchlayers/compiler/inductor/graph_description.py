"""Graphs as data: what another process needs to compile one.

Fake tensors are described by their layouts; tracebacks are left out.
"""

import builtins
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import Graph, GraphModule, Node

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
)
from torchlayers.fx.recomputation import RECOMPUTATION_ID
from torchlayers.fx.strides import STRIDES

_CONSTANTS = (
    *(type(None), bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class NotDescribableError(Exception):
    """The reason why a graph can't be sent to another process."""


class _Reference(NamedTuple):
    """Another node, by its index."""

    place: int


class _Layout(NamedTuple):
    """A fake tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_conj: bool
    is_neg: bool


class _Operator(NamedTuple):
    name: str
    overload: str


class _HigherOrder(NamedTuple):
    name: str


class _Function(NamedTuple):
    """A function of the module operator, or a builtin."""

    name: str


class _Node(NamedTuple):
    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    value: Any
    other: dict[str, Any]


class GraphDescription(NamedTuple):
    """A graph, and the graphs in it by name. Equal graphs have equal descriptions."""

    nodes: list[_Node]
    inside: dict[str, "GraphDescription"]


def describe_graph(graph: GraphModule) -> GraphDescription:
    """Describes a graph without symbolic sizes, whose values are on the CPU.

    Raises:
        NotDescribableError: it holds something that is not described here.
    """
    places = {node: i for i, node in enumerate(graph.graph.nodes)}
    inside: dict[str, GraphDescription] = {}

    def described(argument: Any) -> Any:
        match argument:
            case Node():
                return _Reference(places[argument])
            case SymInt() | SymFloat() | SymBool():
                raise NotDescribableError("it has symbolic sizes")
            case _ if isinstance(argument, _CONSTANTS):
                return argument
            case list() | tuple():
                several = [*map(described, argument)]
                return several if isinstance(argument, list) else tuple(several)
            case dict():
                return {str(name): described(element) for name, element in argument.items()}
            case slice():
                return slice(*map(described, (argument.start, argument.stop, argument.step)))
            case _:
                raise NotDescribableError(f"it holds a {type(argument).__name__}")

    nodes = []
    for node in graph.graph.nodes:
        target: Any = node.target
        if node.op == "get_attr":
            target = str(target)
            subgraph = operator.attrgetter(target)(graph)
            if not isinstance(subgraph, GraphModule):
                raise NotDescribableError(f"it holds a {type(subgraph).__name__}")
            if target not in inside:
                inside[target] = describe_graph(subgraph)
        elif node.op == "call_function":
            target = _describe_target(target)
        elif node.op not in ("placeholder", "output"):
            raise NotDescribableError(f"it has a node of the kind {node.op}")
        fake = node.meta.get("val")
        nodes.append(
            _Node(
                node.op,
                node.name,
                target,
                described(node.args),
                described(node.kwargs),
                None if node.op == "get_attr" else _describe_value(fake),
                {
                    key: described(node.meta[key])
                    for key in (RECOMPUTATION_ID, STRIDES)
                    if key in node.meta
                },
            )
        )
    return GraphDescription(nodes, inside)


def _describe_target(target: Any) -> Any:
    if isinstance(target, OpOverload):
        return _Operator(schema_of(target).name, schema_of(target).overload_name)
    if isinstance(target, HigherOrderOperator):
        return _HigherOrder(str(target))
    name = getattr(target, "__name__", "")
    if _function(name) is not target:
        raise NotDescribableError(f"it calls {name or target}")
    return _Function(name)


def _function(name: str) -> Any:
    return getattr(operator, name, None) or getattr(builtins, name, None)


def _describe_value(fake: Any) -> Any:
    match fake:
        case list() | tuple():
            return tuple(map(_describe_value, fake))
        case None | bool() | int() | float():
            return fake
        case Tensor():
            return _describe_tensor(fake)
        case _:
            raise NotDescribableError(f"a value is a {type(fake).__name__}")


def _describe_tensor(tensor: Tensor) -> _Layout:
    if type(tensor) not in (Tensor, FakeTensor) or tensor.layout is not torch.strided:
        raise NotDescribableError(f"a value is a {type(tensor).__name__} ({tensor.layout})")
    if tensor.is_nested or tensor.is_quantized:
        raise NotDescribableError("a value is a nested or a quantized tensor")
    sizes = (*tensor.shape, *tensor.stride())
    if any(type(size) is not int for size in sizes):
        raise NotDescribableError("it has symbolic sizes")
    return _Layout(
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def devices_in(graph: GraphDescription) -> set[str]:
    """The types of the devices that its values are on."""
    devices = {layout.device.type for node in graph.nodes for layout in _layouts(node.value)}
    return devices.union(*map(devices_in, graph.inside.values()))


def _layouts(values: Any) -> list[_Layout]:
    if isinstance(values, _Layout):
        return [values]
    return (
        [layout for one in values for layout in _layouts(one)] if isinstance(values, tuple) else []
    )


def build_graph(description: GraphDescription) -> GraphModule:
    """Makes the graph, with fake tensors as values.

    Raises:
        NotDescribableError: this process lacks one of its operators.
    """
    return _build(description, FakeTensorMode(allow_fallback_kernels=True))


def _build(description: GraphDescription, mode: FakeTensorMode) -> GraphModule:
    graph, nodes = Graph(), list[Node]()

    def filled(argument: Any) -> Any:
        match argument:
            case _Reference(place):
                return nodes[place]
            case list() | tuple():
                several = [*map(filled, argument)]
                return several if isinstance(argument, list) else tuple(several)
            case dict():
                return {name: filled(element) for name, element in argument.items()}
            case slice():
                return slice(*map(filled, (argument.start, argument.stop, argument.step)))
            case _:
                return argument

    for spec in description.nodes:
        target = _find_target(spec.target)
        node = graph.create_node(spec.op, target, filled(spec.args), filled(spec.kwargs), spec.name)
        node.meta = {**spec.other}
        if spec.value is not None:
            node.meta["val"] = _build_value(spec.value, mode)
        nodes.append(node)
    inside = {name: _build(element, mode) for name, element in description.inside.items()}
    root = torch.nn.Module()
    for name, module in inside.items():
        root.add_module(name, module)
    return GraphModule(root, graph)


def _find_target(target: Any) -> Any:
    match target:
        case _Operator(name, overload):
            space, _, short = name.partition("::")
            try:
                packet = getattr(getattr(torch.ops, space), short)
                return getattr(packet, overload or "default")
            except AttributeError as error:
                raise NotDescribableError(f"the operator {name} is not registered") from error
        case _HigherOrder(name):
            higher_order_op: Callable[..., Any] | None = getattr(torch.ops.higher_order, name, None)
            if higher_order_op is None:
                raise NotDescribableError(f"the operator {name} is not registered")
            return higher_order_op
        case _Function(name):
            return _function(name)
        case _:
            return target


def _build_value(description: Any, mode: FakeTensorMode) -> Any:
    if isinstance(description, _Layout):
        with mode:
            fake = torch.empty_strided(
                description.shape,
                description.stride,
                dtype=description.dtype,
                device=description.device,
            )
            fake = fake.conj() if description.is_conj else fake
            return aten._neg_view(fake) if description.is_neg else fake
    return (
        tuple(_build_value(element, mode) for element in description)
        if isinstance(description, tuple)
        else description
    )
