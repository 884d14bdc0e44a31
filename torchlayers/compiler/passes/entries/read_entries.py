"""Computes the elements that are read from a result, without the result.

A sparse Jacobian is read from products with seeds, which are constants of the captured graph. An
entry is then an affine function of values that don't depend on the seeds,

    result[entry] = constant[entry] + sum over terms: factor[entry] * value[place[entry]]

with constant factors and places, which are found by following the read through the operators.
Most entries of a stencil's Jacobian are constants, and the others have one term.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchlayers.compiler.passes.entries.entry_kinds import FIXED, KNOWN, MIXED, VARYING, kinds_of
from torchlayers.compiler.passes.entries.entry_terms import (
    Term,
    are_read_alike,
    cost_of,
    elements_at,
    factored,
    followed,
    has_repeats,
    scaled_terms,
)
from torchlayers.compiler.passes.entries.entry_writer import (
    CONSTANT,
    EntryWriter,
    divide,
    kind_of,
    multiply_by_slope,
    zero_unless,
    zero_where,
)
from torchlayers.compiler.passes.known_constants import PADDED_WITH_ZEROS
from torchlayers.core.device import CPU
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import calls, emit, replace, value

_MOST_JOINED = 16  # tensors of a cat
_MOST_TERMS = 16  # of a node
_MOST_MADE = 256  # values that are computed from two
# How much smaller a result has to be that is computed and then read, and how many elements may be
# read instead of computing one.
_TIMES = 4

# Each element of these is an element of the first argument, or zero.
_MOVED = {
    aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default,
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor,
    aten.select.int, aten.diagonal.default, aten.flip.default, aten.roll.default,
    aten.repeat.default, aten.index_select.default, aten.constant_pad_nd.default,
    *PADDED_WITH_ZEROS,
}  # fmt: skip
# The first argument times a slope at the second.
_SLOPES = {
    aten.threshold_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default,
    aten.gelu_backward.default, aten.silu_backward.default, aten.softplus_backward.default,
    aten.hardtanh_backward.default, aten.leaky_relu_backward.default,
}  # fmt: skip


class _CannotReadError(Exception):
    """An operator that the pass can't follow."""


def read_entries(graph: GraphModule) -> None:
    """Replaces reads of a few elements, at constant places, of what depends on constants.

    The same sums, in another order, where numbers are finite: what is multiplied by a constant zero
    is left out.
    """
    reads = graph.graph.find_nodes(op="call_function", target=aten.index_select.default)
    if not reads or not any(CONSTANT in node.meta for node in graph.graph.nodes):
        return
    kinds = kinds_of(graph)
    for read in reversed(reads):  # the last one may take in the others
        if read not in kinds:
            kinds = kinds_of(graph)
        source, dim, index = read.args
        if (
            kinds[source] in (MIXED, FIXED)
            and source.op == "call_function"
            and kinds[index] in KNOWN
            and value(source).dim() == 1
            and value(source).dtype.is_floating_point
            and dim in (0, -1)
            and read.users
        ):
            reader = _Reader(graph, kinds, read)
            try:
                entries = reader.entries()
            except _CannotReadError:
                continue
            if entries is not None and replace(read, entries):
                kinds = kinds_of(graph)


class _Reader:
    """Follows one read through the graph."""

    def __init__(self, graph: GraphModule, kinds: dict[Node, str], read: Node) -> None:
        self.kinds, self.read, self.writer = kinds, read, EntryWriter(graph, read)
        self.left = _MOST_MADE
        self.known: dict[Node, Tensor] = {}
        self.seen: dict[tuple[Node, int], list[Term]] = {}
        self.moves: dict[tuple[Any, int], Tensor] = {}
        self.indices: dict[int, list[Tensor]] = {}

    def entries(self) -> Node | None:
        """The node of the entries; None if it would take longer than what is there."""
        source, _, index = self.read.args
        with torch.no_grad():
            places = self._one(self._constant(index).to(torch.int64).reshape(-1))
            size = value(source).numel()
            places = self._one(torch.where(places < 0, places + size, places))
            terms = factored(
                self._merged(self._terms(source, places)), self.writer.multiply, self.writer.add
            )
            count = places.numel()
            if not count or cost_of(terms) > _TIMES * size + count:
                return None
            return self.writer.write(terms, count)

    # What the entries are

    def _terms(self, node: Any, places: Tensor) -> list[Term]:
        """The terms of these elements of a node; -1 is an element that is zero."""
        key = node, id(places)
        if key not in self.seen:
            kind = self.kinds[node]
            if not bool((places >= 0).any()):
                self.seen[key] = []
            elif kind in KNOWN:
                self.seen[key] = [Term(elements_at(self._constant(node), places))]
            elif kind is VARYING:
                ones = (places >= 0).to(value(node).dtype)
                self.seen[key] = [Term(ones, self.writer.flatten(node), places)]
            else:
                terms = self._merged(self._followed(node, places))
                if len(terms) > _MOST_TERMS:
                    raise _CannotReadError
                self.seen[key] = terms
        return self.seen[key]

    def _followed(self, node: Node, places: Tensor) -> list[Term]:
        try:
            return self._rule(node, places)
        except _CannotReadError:
            size: int = value(self.read.args[0]).numel()
            if value(node).numel() * _TIMES > size:
                raise
            return [Term((places >= 0).to(value(node).dtype), self.writer.flatten(node), places)]

    def _rule(self, node: Node, places: Tensor) -> list[Term]:
        target: Any = node.target
        args: Any = node.args
        kwargs: Any = node.kwargs
        dtype = value(node).dtype
        if not dtype.is_floating_point:
            raise _CannotReadError
        if target in _MOVED:
            return self._terms(args[0], self._moved(node, places))
        if calls(node, aten._to_copy.default) and value(args[0]).dtype == dtype:
            return self._terms(args[0], places)
        if calls(node, aten.cat.default):
            return self._joined(node, places)
        if calls(node, aten.neg.default):
            return scaled_terms(self._operand(args[0], node, places), -1)
        if calls(node, aten.mul.Tensor, aten.mul.Scalar):
            return self._multiplied(args[0], args[1], node, places)
        if calls(node, aten.div.Tensor, aten.div.Scalar):
            return self._divided(args[0], args[1], node, places)
        if calls(node, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar):
            scale = kwargs.get("alpha", 1) if len(args) < 3 else args[2]
            sign = 1 if calls(node, aten.add.Tensor, aten.add.Scalar) else -1
            first = self._operand(args[0], node, places)
            return first + scaled_terms(self._operand(args[1], node, places), sign * scale)
        if calls(node, aten.rsub.Tensor, aten.rsub.Scalar):
            scale = kwargs.get("alpha", 1) if len(args) < 3 else args[2]
            second = self._operand(args[1], node, places)
            return second + scaled_terms(self._operand(args[0], node, places), -scale)
        if calls(node, aten.addcmul.default):
            first = self._operand(args[0], node, places)
            product = self._multiplied(args[1], args[2], node, places)
            return first + scaled_terms(product, kwargs.get("value", 1))
        if target in _SLOPES and self.kinds[args[1]] is VARYING:
            return self._chosen(node, args[0], args[1], places, multiply_by_slope(node))
        if calls(node, aten.where.self) and self.kinds[args[0]] is VARYING:
            condition, yes, no = args
            return self._chosen(node, yes, condition, places, zero_unless) + self._chosen(
                node, no, condition, places, zero_where
            )
        if calls(node, aten.index_add.default):
            return self._added(node, places)
        raise _CannotReadError

    def _added(self, node: Node, places: Tensor) -> list[Term]:
        args: Any = node.args
        target, dim, index, source = args
        numbers = torch.full(tuple(value(node).shape), -1)
        at = self._constant(index)
        if numbers.dim() != 1 or dim not in (0, -1) or has_repeats(at):
            raise _CannotReadError
        numbers[at] = torch.arange(len(at))
        added = self._terms(source, self._one(followed(numbers, places)))
        return self._terms(target, places) + scaled_terms(added, node.kwargs.get("alpha", 1))

    def _operand(self, operand: Any, node: Node, places: Tensor) -> list[Term]:
        """The terms of an argument that is broadcast to the node's shape, or of a number."""
        if not isinstance(operand, Node):
            is_inside = (places >= 0).to(value(node).dtype)
            return [Term(is_inside * operand)]
        if value(operand).dtype != value(node).dtype and self.kinds[operand] not in KNOWN:
            raise _CannotReadError
        terms = self._terms(operand, self._broadcast(operand, node, places))
        return [term._replace(factor=term.factor.to(value(node).dtype)) for term in terms]

    def _multiplied(self, a: Any, b: Any, node: Node, places: Tensor) -> list[Term]:
        if not isinstance(a, Node) or self.kinds[a] is not MIXED:
            a, b = b, a
        terms = self._operand(a, node, places)
        if not isinstance(b, Node):
            return scaled_terms(terms, b)
        if not terms:
            return []
        if self.kinds[b] in KNOWN:
            [scale] = self._operand(b, node, places)
            return scaled_terms(terms, scale.factor)
        if self.kinds[b] is MIXED:
            raise _CannotReadError
        [other] = self._operand(b, node, places)
        return [self._with(term, other, aten.mul.Tensor) for term in terms]

    def _divided(self, a: Any, b: Any, node: Node, places: Tensor) -> list[Term]:
        terms = self._operand(a, node, places)
        if not isinstance(b, Node):
            return [term._replace(factor=term.factor / b) for term in terms]
        if self.kinds[b] is not VARYING:
            raise _CannotReadError
        if not terms:
            return []
        [other] = self._operand(b, node, places)
        return [self._with(term, other, divide) for term in terms]

    def _chosen(
        self, node: Node, chosen: Any, by: Node, places: Tensor, choose: Callable[..., Node]
    ) -> list[Term]:
        """The terms of an operand that is chosen, or zero, by a value that varies."""
        if isinstance(chosen, Node) and self.kinds[chosen] is VARYING:
            raise _CannotReadError
        other = Term(torch.empty(0), self.writer.flatten(by), self._broadcast(by, node, places))
        terms = []
        for term in self._operand(chosen, node, places):
            if term.value is None and not bool(term.factor.any()):
                continue
            terms.append(self._with(term, other, choose))
        return terms

    def _joined(self, node: Node, places: Tensor) -> list[Term]:
        args: Any = node.args
        kwargs: Any = node.kwargs
        operands, dim = args[0], kwargs.get("dim", 0) if len(args) < 2 else args[1]
        if len(operands) > _MOST_JOINED or any(
            value(x).dtype != value(node).dtype for x in operands
        ):
            raise _CannotReadError
        terms: list[Term] = []
        nowhere = [torch.full(tuple(value(x).shape), -1) for x in operands]
        for i, operand in enumerate(operands):
            numbers = [*nowhere]
            numbers[i] = torch.arange(value(operand).numel()).reshape(nowhere[i].shape)
            moved = torch.cat(numbers, dim)
            terms += self._terms(operand, self._one(followed(moved.reshape(-1), places)))
        return terms

    def _with(self, term: Term, other: Term, target: Callable[..., Any]) -> Term:
        """The term whose value is computed from two: where they are read, if that is one place."""
        assert other.value is not None and other.places is not None
        self.left -= 1
        if self.left < 0:
            raise _CannotReadError
        size = value(other.value).numel()
        if term.value is None:
            if target is aten.mul.Tensor:
                return other._replace(factor=term.factor)
            one = emit(self.read, aten.ones.default, [size], **kind_of(value(other.value), term))
            return Term(term.factor, self.writer.call(target, one, other.value), other.places)
        assert term.places is not None
        if size == 1 or are_read_alike(term, other):
            return term._replace(value=self.writer.call(target, term.value, other.value))
        if value(term.value).numel() == 1 and target is aten.mul.Tensor:
            return Term(
                term.factor, self.writer.call(target, term.value, other.value), other.places
            )
        first, second = (self.writer.gather(operand) for operand in (term, other))
        numbers = torch.arange(len(term.factor))
        both = torch.where((term.places < 0) | (other.places < 0), -1, numbers)
        return Term(term.factor, self.writer.call(target, first, second), self._one(both))

    # Indices

    def _moved(self, node: Node, places: Tensor) -> Tensor:
        source: Any = node.args[0]
        key = node, id(places)
        if key not in self.moves:
            rest, kwargs = map_arg((node.args[1:], dict(node.kwargs)), self._constant)
            if calls(node, aten.clone.default):
                kwargs = {}
            if calls(node, aten.constant_pad_nd.default) and len(rest) > 1 and rest[1] != 0:
                raise _CannotReadError
            numbers = torch.arange(1, value(source).numel() + 1).reshape(value(source).shape)
            target: Any = node.target
            if calls(node, aten.view.default, aten._unsafe_view.default):
                target = aten.reshape.default
            moved = target(numbers, *rest, **kwargs).reshape(-1) - 1
            self.moves[key] = self._one(followed(moved, places))
        return self.moves[key]

    def _broadcast(self, operand: Node, node: Node, places: Tensor) -> Tensor:
        shape, wanted = tuple(value(operand).shape), tuple(value(node).shape)
        if shape == wanted:
            return places
        key = (shape, wanted), id(places)
        if key not in self.moves:
            numbers = torch.arange(value(operand).numel()).reshape(shape).expand(wanted)
            self.moves[key] = self._one(followed(numbers.reshape(-1), places))
        return self.moves[key]

    def _one(self, places: Tensor) -> Tensor:
        """The same object for equal indices."""
        alike = self.indices.setdefault(hash((len(places), int(places.sum()))), [])
        for known in alike:
            if torch.equal(known, places):
                return known
        alike.append(places)
        return places

    # Constants and nodes

    def _constant(self, node: Any) -> Tensor:
        """The value of a node that is the same at each call, on the CPU."""
        if self.kinds[node] not in KNOWN:
            raise _CannotReadError
        if node not in self.known:
            if node.op == "placeholder":
                constant = node.meta[CONSTANT].cpu()
            else:
                args, kwargs = map_arg((node.args, dict(node.kwargs)), self._constant)
                if kwargs.get("device") is not None:
                    kwargs = {**kwargs, "device": CPU}
                target: Any = node.target
                constant = target(*args, **kwargs)
            self.known[node] = constant
        return self.known[node]

    def _merged(self, terms: list[Term]) -> list[Term]:
        """Terms of the same value become one: at the same places, or of different entries."""
        merged: list[Term] = []
        for term in terms:
            for i, other in enumerate(merged):
                if other.value is not term.value:
                    continue
                if other.places is term.places:
                    merged[i] = other._replace(factor=other.factor + term.factor)
                    break
                assert other.places is not None and term.places is not None
                is_other = other.factor != 0
                if not bool((is_other & (term.factor != 0)).any()):
                    places = self._one(torch.where(is_other, other.places, term.places))
                    merged[i] = Term(other.factor + term.factor, term.value, places)
                    break
            else:
                merged.append(term)
        return [term for term in merged if bool(term.factor.any())]
