"""Estimates the costs of a captured graph: operators, arithmetic, memory traffic, peak memory."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.flops import flop_formula
from torchlayers.core.operators import aten, higher_order
from torchlayers.fx.nodes import memory_of, value, view_base
from torchlayers.fx.writes import is_write


class Costs(NamedTuple):
    """The costs of one call, run operator by operator; a compiler that fuses operators moves less.

    Attributes:
        operators: the number of operators called, views included.
        flops: floating-point operations. A matrix product counts two for each pair of elements;
            any other operator counts the elements of its largest input or output.
        bytes_moved: the bytes that operators read and write. An element that one operator reads
            several times counts once; views count nothing.
        peak_bytes: the most memory held at once for intermediates and results, each freed after
            its last use. The arguments are not counted.

    A scan's body counts once for each step.
    """

    operators: int
    flops: int
    bytes_moved: int
    peak_bytes: int


def costs(graph: GraphModule) -> Costs:
    """Returns the costs of a graph whose nodes have fake tensors in ``meta["val"]``."""
    nodes = [node for node in graph.graph.nodes if _computes(node)]
    steps = {node: _of_step(node) for node in nodes if node.target is higher_order.scan}
    nodes = [node for node in nodes if node not in steps]
    working = [node for node in nodes if view_base(node) is None or is_write(node)]
    times = [(_length(node), step) for node, step in steps.items()]
    return Costs(
        operators=len(nodes) + sum(n * step.operators for n, step in times),
        flops=sum(map(_flops, working)) + sum(n * step.flops for n, step in times),
        bytes_moved=sum(
            sum(map(_bytes, _operands_of(node) + _results_of(node))) for node in working
        )
        + sum(n * step.bytes_moved for n, step in times),
        peak_bytes=_peak(graph, {node: step.peak_bytes for node, step in steps.items()}),
    )


def _of_step(scan: Node) -> Costs:
    body: Any = scan.args[0]
    assert scan.graph.owning_module is not None
    body_graph = scan.graph.owning_module.get_submodule(str(body.target))
    assert isinstance(body_graph, GraphModule)
    return costs(body_graph)


def _length(scan: Node) -> int:
    xs: Any = scan.args[2]
    return int(value(xs[0]).shape[0])


def _computes(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") != "getitem"


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, (list, tuple)):
        return [tensor for element in values for tensor in _tensors(element)]
    return [values] if isinstance(values, Tensor) else []


def _operands_of(node: Node) -> list[Tensor]:
    return [tensor for operand in node.all_input_nodes for tensor in _tensors(value(operand))]


def _results_of(node: Node) -> list[Tensor]:
    return _tensors(value(node))


def _numbers(tensor: Tensor) -> int:
    """The number of elements in memory: a dimension of stride 0 repeats them."""
    if tensor.layout is not torch.strided:
        return tensor.numel()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size if stride or not size else 1 for size, stride in pairs)


def _bytes(tensor: Tensor) -> int:
    return _numbers(tensor) * tensor.element_size()


def _flops(node: Node) -> int:
    results = _results_of(node)
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in results):
        return 0
    counted = flop_formula(node.target)
    if counted is not None:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
        return int(counted(*args, **kwargs, out_val=value(node)))
    if not _operands_of(node) or node.target in _COPIES:
        return 0
    per_element = 2 if node.target in _PRODUCTS_WITH_VECTORS else 1
    return per_element * max(tensor.numel() for tensor in [*_operands_of(node), *results])


# One multiplication and one addition per element of the larger operand; torch has no formula.
_PRODUCTS_WITH_VECTORS = {
    aten.mv.default,
    aten.addmv.default,
    aten.dot.default,
    aten.vdot.default,
}
_COPIES = {
    aten.clone.default,
    aten.copy_.default,
    aten._to_copy.default,
    aten.cat.default,
    aten.stack.default,
    aten.ones_like.default,
    aten.zeros_like.default,
    aten.empty_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_empty.default,
    aten.new_full.default,
}


def _peak(graph: GraphModule, inside: dict[Node, int]) -> int:
    """The peak memory; ``inside`` has the bytes that an operator holds internally as it runs."""
    nodes = list(graph.graph.nodes)
    owner = {node: _owner(node) for node in nodes if node.op == "call_function"}
    last: dict[Node, int] = {}
    for i, node in enumerate(nodes):
        for read in node.all_input_nodes:
            last[owner.get(read, read)] = i
    ends: dict[int, list[Node]] = {}
    for node, i in last.items():
        ends.setdefault(i, []).append(node)
    alive, peak = 0, 0
    size = {node: _size(node) for node, of in owner.items() if of is node}
    for i, node in enumerate(nodes):
        alive += size.get(node, 0)
        peak = max(peak, alive + inside.get(node, 0))
        alive -= sum(size.get(ended, 0) for ended in ends.get(i, []))
        if node not in last:  # never read
            alive -= size.get(node, 0)
    return peak


def _owner(node: Node) -> Node:
    """The operator that allocated the memory; for an item, the operator with several results."""
    while True:
        node = memory_of(node)
        if node.op != "call_function" or _computes(node):
            return node
        node = node.all_input_nodes[0]


def _size(node: Node) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _results_of(node))
