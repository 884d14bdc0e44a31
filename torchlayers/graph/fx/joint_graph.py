"""Step 3 for FX: the reverse graph, added below the operators that it differentiates.

One graph holds both, so that the next step, choosing what to save, sees both.
Values are of three kinds: the original's (primal); helpers, which the gradients compute from
primal values alone, such as the cosine in the gradient of a sine; and those that depend on
cotangents.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import Node

from torchlayers.core import operator_schema, pytree
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.torch_private import FakeTensor, HigherOrderOperator
from torchlayers.fx.cse import hashable
from torchlayers.fx.nodes import is_random
from torchlayers.graph.errors import GraphError
from torchlayers.graph.fx.normalize import NormalizedGraph, is_view, value
from torchlayers.graph.fx.vjp_rules import OperatorCall, Rule, Rules
from torchlayers.graph.node_location import locate

# Torch's formula for this operator reads an argument after the operator has written to it. In the
# functional variant the argument is unchanged, and its new value is a result.
_WRITTEN: dict[Any, Any] = {aten.rrelu_with_noise_functional.default: ((1, (1,)),)}

# Operators that have a derivative elsewhere but can't have one here, and what to use instead.
_REFUSED: dict[Any, str] = {
    higher_order.while_loop: (
        "its number of iterations, and so how much has to be saved, is known only at run time. Use "
        "a Python loop with a known count, which is unrolled, or torch's scan."
    ),
    aten.mkldnn_rnn_layer.default: (
        "it saves what its derivative needs only if autograd is enabled, which it is not while the "
        "forward graph runs. Use torch.export, which decomposes it."
    ),
}

# The gradient of a branch or a body runs it again.
_DRAWS = (
    "a function that it calls draws random numbers, and its gradient would draw others. Draw them "
    "before, and pass them as an operand."
)

# Autograd detaches its own saved values with these. Values here have no history, so they can go.
_NO_OPERATION = (aten.detach.default, aten.alias.default)


@dataclass
class JointGraph:
    """A program and its reverse in one graph.

    Attributes:
        graph: the operators, then the reverse ones; its output node is removed.
        inputs: the program's inputs.
        outputs: its outputs, flat; some may be constants.
        cotangents: for each output that has one, its position and the placeholder.
        gradients: for each input that has one, its position and the node that computes it.
        primal: the program's own nodes.
        reverse: the nodes that depend on cotangents.
    """

    graph: fx.Graph
    inputs: list[Node]
    outputs: list[Any]
    cotangents: list[tuple[int, Node]] = field(default_factory=list)
    gradients: list[tuple[int, Node]] = field(default_factory=list)
    primal: set[Node] = field(default_factory=set)
    reverse: set[Node] = field(default_factory=set)

    def needed(self) -> list[Node]:
        """Returns the nodes that the gradients are computed from, in the graph's order."""
        needed = ancestors_of(node for _, node in self.gradients)
        return [node for node in self.graph.nodes if node in needed]


def ancestors_of(ends: Iterable[Node]) -> set[Node]:
    """Returns the nodes, and all nodes that they are computed from."""
    ancestors: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting.extend(node.all_input_nodes)
    return ancestors


def build_joint_graph(program: NormalizedGraph, wanted: Sequence[int]) -> JointGraph:
    """Adds the gradients of the wanted inputs to the program's graph.

    Raises:
        GraphError: a node between can't be differentiated, or no output depends on the inputs.
    """
    return _Reverse(program, wanted).joint


class _Reverse:
    def __init__(self, program: NormalizedGraph, wanted: Sequence[int]) -> None:
        graph = program.graph
        graph.owning_module = program.root  # type: ignore[assignment]  # for calls of subgraphs
        self.rules = Rules(program.root, program.mode)
        self.root, self.mode = program.root, program.mode
        self.emit = _Emitter(graph)
        last = next(iter(reversed(graph.nodes)))
        outputs = list(last.args[0])
        graph.erase_node(last)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.joint = JointGraph(graph, inputs, outputs, primal=set(graph.nodes))
        self.reverse = self.joint.reverse
        # For each symbolic size, an input that has it, so that no other tensor is saved for it.
        self.sizes = {
            str(size): (node, dim)
            for node in reversed(inputs)
            if isinstance(val := value(node), Tensor)
            for dim, size in enumerate(val.shape)
            if not isinstance(size, int)
        }
        self.cotangents: dict[Node, Node] = {}
        self.calls: dict[Node, OperatorCall] = {}
        operators = [node for node in graph.nodes if node.op == "call_function"]
        needs = self._find_needs(operators, {inputs[i] for i in wanted})
        self._seed(needs)
        for node in reversed(operators):
            if node in self.calls:
                self._pull_back(node, needs)
        for i in wanted:
            if inputs[i] in self.cotangents:
                self.joint.gradients.append((i, self.cotangents[inputs[i]]))

    def _find_needs(self, operators: list[Node], needs: set[Node]) -> set[Node]:
        """Returns the values that depend on the wanted inputs and have a derivative."""
        for node in operators:
            if not any(argument in needs for argument in node.all_input_nodes):
                continue
            if node.target is operator.getitem:
                continue  # handled with the node that returns it
            if not any(isinstance(leaf, Tensor) for leaf in pytree.leaves(value(node))):
                continue
            if (why := _refusal(node)) is not None:
                raise GraphError(
                    f"torchlayers: differentiate: {locate(node)}, can't be differentiated: {why}"
                )
            call = OperatorCall(node, self.root, needs)
            flags = self.rules.differentiable_outputs(call)
            if not any(flags):
                continue
            self.calls[node] = call
            by_path = dict(zip([p for p, _ in _leaves_of(value(node))], flags, strict=True))
            if by_path.get(()):
                needs.add(node)
            needs.update(taken for taken, path in _taken(node) if by_path.get(path))
        return needs

    def _seed(self, needs: set[Node]) -> None:
        """Adds a cotangent for each output that has a derivative."""
        for place, output in enumerate(self.joint.outputs):
            if not isinstance(output, Node) or output not in needs:
                continue
            cotangent = self.joint.graph.placeholder(f"grad_{output.name}")
            with self.mode:
                cotangent.meta["val"] = torch.empty(
                    value(output).shape, dtype=value(output).dtype, device=value(output).device
                )
            self.joint.cotangents.append((place, cotangent))
            self.reverse.add(cotangent)
            self._add(output, cotangent, output)
        if not self.joint.cotangents:
            raise GraphError(
                "torchlayers: differentiate: no output of the graph depends on its inputs in a "
                "way that has a derivative. Choose other argnums, or check that what it computes "
                "is floating-point and not detached."
            )

    def _pull_back(self, node: Node, needs: set[Node]) -> None:
        """Adds node's contribution to the cotangents of its inputs."""
        call = self.calls[node]
        flags = self.rules.differentiable_outputs(call)
        arrived = _Cotangents(self, node)
        cotangents = [
            arrived.cotangent_at(path) if flag else None
            for (path, _), flag in zip(_leaves_of(value(node)), flags, strict=True)
        ]
        if not any(cotangents):
            return
        rule = self.rules.rule(call, [t.meta["val"] if t else None for t in cotangents])
        gradients = self._write(node, call, rule, [t for t in cotangents if t])
        for argument, gradient in zip(call.inputs, gradients, strict=True):
            if gradient is not None and argument in needs:
                self._add(argument, gradient, node)

    def _write(
        self, node: Node, call: OperatorCall, rule: Rule, cotangents: Sequence[Node]
    ) -> list[Any]:
        """Writes a rule's steps into the graph, and returns the gradients of node's inputs."""
        known: dict[Node, Any] = dict(zip(rule.primals, call.inputs, strict=True))
        known.update(zip(rule.cotangents, cotangents, strict=True))
        used = {n for step in rule.steps for n in step.all_input_nodes}
        used.update(g for g in rule.gradients if isinstance(g, Node))
        for (path, _), output in zip(_leaves_of(value(node)), rule.outputs, strict=True):
            if output in used and output not in known:
                known[output] = self._output_at(node, path)
        for argument, path in _WRITTEN.get(node.target, ()):
            place = call.inputs.index(node.all_input_nodes[argument])
            known[rule.primals[place]] = self._output_at(node, path)
        for step in rule.steps:
            if step.op == "get_attr":
                known[step] = self._attribute(rule, step, node)
            elif step.target in _NO_OPERATION:
                known[step] = known[step.all_input_nodes[0]]
            else:
                known[step] = self._step(step, known, node)
        return [known.get(g, g) if isinstance(g, Node) else g for g in rule.gradients]

    def _step(self, step: Node, known: dict[Node, Any], source: Node) -> Node:
        if step.target is aten.sym_size.int and str(value(step)) in self.sizes:
            args: Any = self.sizes[str(value(step))]
        else:
            args = fx.node.map_arg(step.args, lambda n: known[n])
        kwargs = fx.node.map_arg(step.kwargs, lambda n: known[n])
        return self._operator(step.target, args, kwargs, value(step), source)

    def _operator(self, target: Any, args: Any, kwargs: Any, val: Any, source: Node) -> Node:
        swapped = _swapped(target, args)
        if swapped is not None and swapped == _swapped(args[0].target, args[0].args):
            before: Node = args[0].all_input_nodes[0]
            return before
        node = self.emit(target, args, kwargs)
        if "val" not in node.meta:
            node.meta["val"] = val
            node.meta["gradient_of"] = source.name
            if "stack_trace" in source.meta:
                node.meta["stack_trace"] = source.meta["stack_trace"]
        if any(argument in self.reverse for argument in node.all_input_nodes):
            self.reverse.add(node)
        return node

    def _output_at(self, node: Node, path: tuple[int, ...]) -> Node:
        """Returns the node of one of a node's results, which the original may not use."""
        output = node
        for i in path:
            taken = next(
                (n for n in output.users if n.target is operator.getitem and n.args[1] == i), None
            )
            if taken is None:
                with self.joint.graph.inserting_after(output):
                    taken = self.joint.graph.call_function(operator.getitem, (output, i))
                taken.meta.update({k: v for k, v in output.meta.items() if k != "val"})
                taken.meta["val"] = value(output)[i]
                self.joint.primal.add(taken)
            output = taken
        return output

    def _attribute(self, rule: Rule, step: Node, node: Node) -> Node:
        """Moves a branch of a control flow operator's backward, or a constant, to the root."""
        moved = getattr(rule.module, str(step.target))
        if isinstance(moved, FakeTensor):
            raise GraphError(
                f"torchlayers: differentiate: {locate(node)}, can't be differentiated: its "
                "gradient "
                "is computed from a constant that depends on values."
            )
        if isinstance(moved, Tensor):
            name = f"constant_{len(self.root._buffers)}"
            self.root.register_buffer(name, moved)
        else:
            name = f"branch_{len(self.root._modules)}"
            self.root.add_module(name, moved)
        attribute = self.joint.graph.get_attr(name)
        attribute.meta.update(step.meta)
        self.joint.primal.add(attribute)
        return attribute

    def _add(self, argument: Node, gradient: Node, source: Node) -> None:
        if argument not in self.cotangents:
            self.cotangents[argument] = gradient
            return
        before = self.cotangents[argument]
        total = before.meta["val"]
        if total.stride() != gradient.meta["val"].stride():
            with self.mode:
                total = torch.add(total, gradient.meta["val"])
        self.cotangents[argument] = self._operator(
            aten.add.Tensor, (before, gradient), {}, total, source
        )


def _swapped(target: Any, args: Any) -> set[int] | None:
    """The dimensions that a transposition swaps; None for any other operator."""
    if target is aten.t.default:
        return {0, 1}
    if target is aten.transpose.int:
        return {dim % max(value(args[0]).dim(), 1) for dim in args[1:]}
    return None


class _Cotangents:
    """The cotangents of a node's results, accumulated so far."""

    def __init__(self, reverse: _Reverse, node: Node) -> None:
        self.reverse = reverse
        self.node = node
        self.by_path: dict[tuple[int, ...], list[Node]] = {}
        if node in reverse.cotangents:
            self.by_path[()] = [node]
        for taken, path in _taken(node):
            if taken in reverse.cotangents:
                self.by_path.setdefault(path, []).append(taken)

    def cotangent_at(self, path: tuple[int, ...]) -> Node | None:
        nodes = self.by_path.get(path, [])
        for other in nodes[1:]:  # the same result, taken twice
            self.reverse._add(nodes[0], self.reverse.cotangents[other], self.node)
        return self.reverse.cotangents[nodes[0]] if nodes else None


class _Emitter:
    """Adds an operator to the graph once, even if several gradients need it."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.written: dict[Any, Node] = {}
        given_away = _escaping_nodes(graph)
        for node in list(graph.nodes):
            if node.op != "call_function" or is_random(node):
                continue
            first = self.written.setdefault((node.target, hashable((node.args, node.kwargs))), node)
            if first is not node and node not in given_away:  # the program computes it twice
                node.replace_all_uses_with(first)
                graph.erase_node(node)

    def __call__(self, target: Any, args: Any, kwargs: Any) -> Node:
        key = object() if operator_schema.is_random(target) else (target, hashable((args, kwargs)))
        if key not in self.written:
            packet = getattr(target, "overloadpacket", target)
            name = getattr(packet, "__name__", None)
            self.written[key] = self.graph.create_node(
                "call_function", target, args, kwargs, name=name
            )
        return self.written[key]


def _refusal(node: Node) -> str | None:
    """Returns why the node can't be differentiated here, although its operator has a derivative."""
    if isinstance(node.target, HigherOrderOperator) and is_random(node):
        return _DRAWS
    return _REFUSED.get(node.target)


def _escaping_nodes(graph: fx.Graph) -> set[Node]:
    """Returns the outputs, and what they are views of: the caller may write to each of them."""
    escaping: set[Node] = set()
    for node in next(iter(reversed(graph.nodes))).all_input_nodes:
        while node not in escaping:
            escaping.add(node)
            if not is_view(node) and node.target is not operator.getitem:
                break
            node = node.all_input_nodes[0]
    return escaping


def _leaves_of(val: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yields a node's results, each with the indices of the getitems that lead to it."""
    if isinstance(val, (tuple, list)):
        for i, element in enumerate(val):
            yield from _leaves_of(element, (*path, i))
    else:
        yield path, val


def _taken(node: Node, path: tuple[int, ...] = ()) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yields the getitems of a node's results, each with its path of indices."""
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node:
            index: Any = user.args[1]
            here = (*path, index)
            yield user, here
            yield from _taken(user, here)
