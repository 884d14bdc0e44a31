"""Shares values between scans: later scans read what the steps of earlier ones computed.

A reverse pass recomputes each step from the carry before it (NOTE [A scan that is recorded]). A
value that the forward pass computes too, of the same slices in the other order, becomes one of its
ys, and the reverse pass reads slices of it instead of computing it. Then unread ys, slices and
captured tensors are dropped.
"""

import itertools
import operator
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.dead_code import drop_dead
from torchlayers.core.operators import aten, higher_order
from torchlayers.fx.cse import key_of
from torchlayers.fx.nodes import calls, emit, has_effect, value, view_base


def share_steps(graph: GraphModule) -> None:
    """Exact. Each scan's body must be a graph that nothing else uses."""
    scans = [Scan(graph, node) for node in graph.graph.nodes if calls(node, higher_order.scan)]
    for i, scan in enumerate(scans):
        for earlier in scans[:i]:
            if str(earlier.length) == str(scan.length):  # compares symbols, too
                _share(earlier, scan)
    for scan in reversed(scans):
        scan.drop_unread()
        drop_dead(graph)


class Scan:
    """A scan in a graph, with operands and results that can be added and dropped."""

    def __init__(self, graph: GraphModule, node: Node) -> None:
        self.node = node
        body_node: Any = node.args[0]
        body = graph.get_submodule(str(body_node.target))
        assert isinstance(body, GraphModule)
        self.body = body
        _, carry, xs, captured = node.args
        self.carry: list[Node] = [*carry]  # type: ignore[misc]
        self.xs: list[Node] = [*xs]  # type: ignore[misc]
        self.captured: list[Node] = [*captured]  # type: ignore[misc]

    @property
    def length(self) -> int:
        return value(self.xs[0]).shape[0]  # type: ignore[no-any-return]

    @property
    def inputs(self) -> list[Node]:
        """The body's placeholders."""
        return [*self.body.graph.find_nodes(op="placeholder")]

    @property
    def results(self) -> list[Any]:
        """The body's results: the next carry, then the ys."""
        returned: Any = self.body.graph.output_node().args[0]
        return [*returned]

    def y(self, of: Node) -> Node:
        """Returns the graph's node of the ys with this value of the body, adding it if needed."""
        carried = len(self.carry)
        results = self.results
        places = [i for i, y in enumerate(results) if i >= carried and copied(y) is copied(of)]
        place = places[0] if places else len(results)
        if not places:
            end = self.body.graph.output_node()
            y = emit(end, aten.clone.default, of, memory_format=torch.contiguous_format)
            end.args = ((*results, y),)
            fake = value(of)
            self.node.meta["val"] = (
                *value(self.node),
                fake.new_empty(self.length, *fake.shape),
            )
        for user in self.node.users:
            if user.args[1] == place:
                return user
        return emit(self.node.next, operator.getitem, self.node, place)

    def take(self, of: Node, xs: Node) -> None:
        """Replaces a value of the body with a slice of xs."""
        first = self.inputs[len(self.carry) + len(self.xs) - 1].next
        taken = {node.target for node in self.inputs}
        name = next(name for i in itertools.count() if (name := f"x_{i}") not in taken)
        with self.body.graph.inserting_before(first):
            x = self.body.graph.placeholder(name)
        x.meta["val"] = torch.empty_like(value(of), memory_format=torch.contiguous_format)
        of.replace_all_uses_with(x)
        self.xs.append(xs)
        self._write()

    def drop_unread(self) -> None:
        carried = len(self.carry)
        read = {user.args[1] for user in self.node.users}
        wanted = [i for i in range(len(self.results)) if i < carried or i in read]
        results, values = self.results, value(self.node)
        self.body.graph.output_node().args = (tuple(results[i] for i in wanted),)
        self.node.meta["val"] = tuple(values[i] for i in wanted)
        for user in [*self.node.users]:
            user.args = (self.node, wanted.index(user.args[1]))  # type: ignore[arg-type]
        drop_dead(self.body)
        inputs = self.inputs
        sources = [*self.xs, *self.captured]
        of_xs = [x for x in range(len(self.xs)) if inputs[carried + x].users] or [0]
        retained = [
            *of_xs,
            *(i for i in range(len(self.xs), len(sources)) if inputs[carried + i].users),
        ]
        for i in range(len(sources)):
            if i not in retained:
                self.body.graph.erase_node(inputs[carried + i])
        self.captured = [sources[i] for i in retained if i >= len(self.xs)]
        self.xs = [sources[i] for i in of_xs]
        self._write()
        self.body.recompile()

    def _write(self) -> None:
        self.node.args = (self.node.args[0], [*self.carry], [*self.xs], tuple(self.captured))


def _share(first: Scan, then: Scan) -> None:
    """Has the steps of the second scan read values that those of the first compute."""
    same, reverse = _shared_inputs(first, then)
    if same is None:
        return
    known = {_key(node, {}): node for node in _computing(first.body)}
    for node in _computing(then.body):
        match = known.get(_key(node, same))
        if match is not None and all(copied(operand) in same for operand in node.all_input_nodes):
            same[node] = match
    for node, match in _worth_reading(then, same):
        xs = first.y(match)
        if reverse:
            xs = emit(then.node, aten.flip.default, xs, [0])
        then.take(node, xs)


def _shared_inputs(first: Scan, then: Scan) -> tuple[dict[Node, Node] | None, bool]:
    """Maps inputs of the second body to equal values of the first, and tells whether in reverse."""
    first_inputs, then_inputs = first.inputs, then.inputs
    behind, before = len(first.carry) + len(first.xs), len(then.carry) + len(then.xs)
    for reverse in (True, False):
        same: dict[Node, Node] = {}
        slices = {
            _source(x, reverse): first_inputs[len(first.carry) + i] for i, x in enumerate(first.xs)
        }
        for i, y in enumerate(first.results[len(first.carry) :], len(first.carry)):
            order = tuple(range(value(first.node)[i].dim()))
            slices[((first.node, i), order, frozenset({0} if reverse else ()))] = copied(y)
        for i, x in enumerate(then.xs):
            if (match := slices.get(_source(x, False))) is not None:
                same[then_inputs[len(then.carry) + i]] = match
        if same:
            captured = {node: first_inputs[behind + i] for i, node in enumerate(first.captured)}
            for i, node in enumerate(then.captured):
                if node in captured:
                    same[then_inputs[before + i]] = captured[node]
            return same, reverse
    return None, False


def _source(xs: Node, reverse: bool) -> Hashable:
    """Returns the source of the elements, the order of its dimensions, and the flipped ones."""
    order = [*range(value(xs).dim())]
    turned: set[int] = set()  # of the dimensions of xs
    node = xs
    while True:
        if calls(node, aten.clone.default):
            node = node.args[0]  # type: ignore[assignment]
        elif calls(node, aten.flip.default):
            dims: Any = node.args[1]
            ndim = len(order)
            turned ^= {order.index(dim % ndim) for dim in dims}
            node = node.args[0]  # type: ignore[assignment]
        elif (swap := _permuted(node)) is not None:
            order = [swap[dim] for dim in order]
            node = node.args[0]  # type: ignore[assignment]
        else:
            break
    if reverse:
        turned ^= {0}
    root: Hashable = node
    if calls(node, operator.getitem):
        root = (node.args[0], node.args[1])
    return root, tuple(order), frozenset(turned)


def _permuted(node: Node) -> list[int] | None:
    """Returns, for each dimension of a permuted view, its dimension in the source, or None."""
    if calls(node, aten.permute.default):
        dims: Any = node.args[1]
        return [dim % len(dims) for dim in dims]
    if calls(node, aten.transpose.int):
        ndim = value(node).dim()
        order = [*range(ndim)]
        one, other = (int(dim) % ndim for dim in node.args[1:3])  # type: ignore[arg-type]
        order[one], order[other] = order[other], order[one]
        return order
    return None


def copied(node: Any) -> Any:
    """Returns the source of copies, or the node if it is not a copy."""
    while calls(node, aten.clone.default):
        node = node.args[0]
    return node


def _computing(body: GraphModule) -> Iterator[Node]:
    """Yields the operators that may be shared, which read only values of the body."""
    for node in body.graph.nodes:
        plain = node.op == "call_function" and not has_effect(node)
        if plain and not any(operand.op == "get_attr" for operand in node.all_input_nodes):
            yield node


def _key(node: Node, same: dict[Node, Node]) -> Hashable:
    def shared(operand: Node) -> Node:
        operand = copied(operand)
        return same.get(operand, operand)

    args = torch.fx.node.map_arg((node.args, dict(node.kwargs)), shared)
    return key_of(node, *args)


def _worth_reading(then: Scan, same: dict[Node, Node]) -> Iterator[tuple[Node, Node]]:
    """Yields the shared values that the second scan's steps need; views are recomputed."""
    needed: list[Node] = []
    for node in then.body.graph.nodes:
        if node not in same:
            needed += (operand for operand in node.all_input_nodes if operand in same)
    seen: set[Node] = set()
    while needed:
        node = needed.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        is_tensor = isinstance(value(node), Tensor)
        if not is_tensor or view_base(node) is not None or copied(node) is not node:
            needed += (operand for operand in node.all_input_nodes if operand in same)
        elif node.all_input_nodes:
            yield node, same[node]
