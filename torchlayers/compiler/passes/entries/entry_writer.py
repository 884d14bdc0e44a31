"""Emits the operators that compute entries: values scaled, gathered, added and written."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.entries.entry_terms import Term, extent, is_small, uniform
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import emit, value

# The value, a tensor, of an input that is the same at each call. New inputs get one, too.
CONSTANT = "constant"


class EntryWriter:
    """Emits operators in front of the node that reads the entries."""

    def __init__(self, graph: GraphModule, read: Node) -> None:
        self.graph, self.read = graph, read

    def write(self, terms: list[Term], count: int) -> Node:
        """The sum of the terms: those of most entries are added, and the others written."""
        constant = torch.zeros(count, dtype=value(self.read).dtype)
        for term in terms:
            if term.value is None:
                constant = constant + term.factor
        varying = sorted((term for term in terms if term.value is not None), key=extent)
        total = None
        if bool(constant.any()) or not varying or is_small(varying[-1]):
            total = self._new_input(constant)
        written = torch.zeros(count, dtype=torch.bool)
        for term in reversed(varying):
            inside = (term.factor != 0).nonzero().reshape(-1)
            if is_small(term):
                assert total is not None
                before = None if bool(written[inside].any()) else constant
                total = self._write_into(total, term, inside, before)
            else:
                added = self._spread(term, inside)
                total = added if total is None else self.add(total, added)
            written[inside] = True
        assert total is not None
        return total

    def _spread(self, term: Term, inside: Tensor) -> Node:
        """A term's values for all entries."""
        scaled = self._scale(self.gather(term), term.factor, uniform(term.factor[inside]))
        if len(inside) == len(term.factor):
            return scaled
        zero = emit(self.read, aten.zeros.default, [], **kind_of(value(self.read), term))
        return emit(self.read, aten.where.self, self._new_input(term.factor != 0), scaled, zero)

    def _write_into(self, total: Node, term: Term, inside: Tensor, constant: Tensor | None) -> Node:
        """The total, to which a term is added in its entries; they are the constant so far."""
        assert term.places is not None
        factor = term.factor[inside]
        new = self.gather(term._replace(places=term.places[inside]))
        new = self._scale(new, factor, uniform(factor))
        entries = self._new_input(inside)
        if constant is None:
            before = emit(self.read, aten.index_select.default, total, 0, entries)
            new = self.add(before, new)
        elif bool(constant[inside].any()):
            new = self.add(self._new_input(constant[inside]), new)
        return emit(self.read, aten.index_put.default, total, [entries], new)

    def _scale(self, node: Node, factor: Tensor, uniform: float | None) -> Node:
        if uniform is not None:
            return self.multiply(node, uniform)
        return emit(self.read, aten.mul.Tensor, node, self._new_input(factor))

    def gather(self, term: Term) -> Node:
        assert term.value is not None and term.places is not None
        places = term.places.clamp(min=0)
        if torch.equal(places, torch.arange(value(term.value).numel())):
            return term.value
        return emit(self.read, aten.index_select.default, term.value, 0, self._new_input(places))

    def flatten(self, node: Node) -> Node:
        if value(node).dim() == 1:
            return node
        if not value(node).is_contiguous():
            node = emit(self.read, aten.clone.default, node, memory_format=torch.contiguous_format)
        return emit(self.read, aten.view.default, node, [-1])

    def call(self, target: Callable[..., Any], *args: Any) -> Node:
        if isinstance(target, OpOverload):
            return emit(self.read, target, *args)
        node: Node = target(self.read, *args)
        return node

    def multiply(self, node: Node, factor: float) -> Node:
        return node if factor == 1 else emit(self.read, aten.mul.Tensor, node, factor)

    def add(self, one: Node, other: Node) -> Node:
        return emit(self.read, aten.add.Tensor, one, other)

    def _new_input(self, tensor: Tensor) -> Node:
        """A new input of the graph, a constant."""
        tensor = tensor.to(value(self.read).device)
        graph = self.graph.graph
        last = [node for node in graph.find_nodes(op="placeholder") if CONSTANT in node.meta][-1]
        with graph.inserting_after(last):
            new = graph.placeholder("entries")
        new.target = new.name  # a unique identifier
        mode = value(self.read).fake_mode
        new.meta = {"val": mode.from_tensor(tensor, static_shapes=True), CONSTANT: tensor}
        return new


def kind_of(like: Tensor, term: Term) -> dict[str, Any]:
    return {"dtype": term.factor.dtype, "device": like.device}


def divide(before: Node, x: Node, by: Node) -> Node:
    return emit(before, aten.div.Tensor, x, by)


def multiply_by_slope(node: Node) -> Callable[..., Node]:
    target: Any = node.target

    def multiply(before: Node, x: Node, by: Node) -> Node:
        return emit(before, target, x, by, *node.args[2:], **node.kwargs)

    return multiply


def zero_unless(before: Node, x: Node, condition: Node) -> Node:
    zero = emit(before, aten.zeros.default, [], dtype=value(x).dtype, device=value(x).device)
    return emit(before, aten.where.self, condition, x, zero)


def zero_where(before: Node, x: Node, condition: Node) -> Node:
    zero = emit(before, aten.zeros.default, [], dtype=value(x).dtype, device=value(x).device)
    return emit(before, aten.where.self, condition, zero, x)
