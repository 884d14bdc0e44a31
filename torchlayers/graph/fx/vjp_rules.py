"""Steps 1 and 2 for FX: which nodes are differentiable, and the gradient of a node.

The rules are those of csrc/rules, evaluated on fake tensors: the operator runs alone under vjp, and
that is traced. The rule for an operator on tensors of given shapes is cached, so a long graph with
few kinds of operators needs few traces.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import GraphModule, Node

from torchlayers.core import operator_schema, pytree, torch_func
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import (
    DynamicOutputShapeException,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
)
from torchlayers.fx.cse import hashable
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.graph.errors import GraphError
from torchlayers.graph.fx.normalize import fake_copy
from torchlayers.graph.node_location import locate
from torchlayers.transforms.vjp import vjp


@dataclass
class Rule:
    """The vjp of one operator, as a graph.

    Attributes:
        graph: computes the operator and its backward.
        primals: the placeholders of the operator's inputs.
        cotangents: the placeholders of the outputs' cotangents.
        outputs: the nodes that compute the operator's outputs, one per leaf.
        gradients: the nodes that compute the gradient of each primal; None if there is none.
        steps: the nodes that the gradients need besides the above, in order.
        module: holds the subgraphs that steps refer to.
    """

    graph: fx.Graph
    primals: list[Node]
    cotangents: list[Node]
    outputs: list[Any]
    gradients: list[Any]
    steps: list[Node]
    module: GraphModule


class Rules:
    """The rules of the operators of one graph, each captured once."""

    def __init__(self, root: torch.nn.Module, mode: FakeTensorMode) -> None:
        self._root = root
        self._mode = mode
        self._differentiable: dict[Any, tuple[bool, ...]] = {}
        self._rules: dict[Any, Rule] = {}

    def differentiable_outputs(self, call: "OperatorCall") -> tuple[bool, ...]:
        """Returns, for each leaf of the node's result, whether gradients flow back from it."""
        if call.key not in self._differentiable:
            with self._mode, torch.enable_grad():
                try:
                    with call.returning(call.known_results(self._mode)):
                        outputs = pytree.leaves(call.run(call.fresh(self._mode)))
                except Exception as error:
                    if call.decompose(error):
                        return self.differentiable_outputs(call)
                    raise call.refusal(error) from error
            self._differentiable[call.key] = tuple(
                isinstance(leaf, Tensor) and leaf.requires_grad for leaf in outputs
            )
        return self._differentiable[call.key]

    def rule(self, call: "OperatorCall", cotangents: Sequence[Tensor | None]) -> Rule:
        """Returns the vjp for such cotangents, one per leaf of the node's result; None is zero."""
        key = (call.key, tuple(map(_describe, cotangents)))
        if key not in self._rules:
            try:
                self._rules[key] = self._record(call, cotangents, self._mode)
            except Exception as error:
                if not isinstance(error, DynamicOutputShapeException):
                    if call.decompose(error):
                        return self.rule(call, cotangents)
                    raise call.refusal(error) from error
                self._rules[key] = self._record_with_symbols(call, cotangents)
        return self._rules[key]

    def _record_with_symbols(
        self, call: "OperatorCall", cotangents: Sequence[Tensor | None]
    ) -> Rule:
        """Uses symbolic sizes, because a shape inside the rule depends on values."""
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # slow to import

        try:
            return self._record(call, cotangents, FakeTensorMode(shape_env=ShapeEnv()))
        except Exception as error:
            raise call.refusal(error) from error

    def _record(
        self, call: "OperatorCall", cotangents: Sequence[Tensor | None], mode: FakeTensorMode
    ) -> Rule:
        primals = [pytree.map_tensors(Tensor.detach, primal) for primal in call.fresh(mode)]
        fake_cotangents = [fake_copy(t, mode) for t in cotangents if t is not None]
        wanted = call.wanted
        counts: list[int] = []

        def vjp_of(
            primals: list[Any], fake_cotangents: list[Tensor], results: list[Any]
        ) -> tuple[list[Any], Any]:
            def func(*chosen: Tensor) -> tuple[list[Tensor], list[Any]]:
                inputs = {**dict(enumerate(primals)), **dict(zip(wanted, chosen, strict=True))}
                with call.returning(results):
                    outputs = pytree.leaves(call.run([*inputs.values()]))
                pairs = zip(outputs, cotangents, strict=True)
                return [output for output, t in pairs if t is not None], outputs

            _, pull, outputs = vjp(func, *(primals[i] for i in wanted), has_aux=True)
            counts.append(len(outputs))
            return outputs, pull(fake_cotangents)

        has_subgraphs = isinstance(call.node.target, HigherOrderOperator)
        inputs = [*primals], fake_cotangents, call.known_results(mode)
        with mode:
            recorded = trace_operators(vjp_of, *inputs, has_subgraphs=has_subgraphs)
            if any(operator_schema.writes(node.target) for node in recorded.graph.nodes):
                without_writes = torch_func.functionalize(fx.Interpreter(recorded).run)
                recorded = trace_operators(
                    without_writes, *pytree.leaves(inputs), has_subgraphs=has_subgraphs
                )
        placeholders = [node for node in recorded.graph.nodes if node.op == "placeholder"]
        known = placeholders[len(primals) + len(fake_cotangents) :]
        leaves = pytree.leaves(_result(recorded.graph))
        gradients: list[Any] = [None] * len(primals)
        cotangent_inputs = placeholders[len(primals) : len(placeholders) - len(known)]
        depend = _dependent(recorded.graph, cotangent_inputs)
        for i, gradient in zip(wanted, leaves[counts[0] :], strict=True):
            gradients[i] = gradient if gradient in depend else None  # linear in them: zero
        outputs = known or leaves[: counts[0]]
        return Rule(
            graph=recorded.graph,
            primals=placeholders[: len(primals)],
            cotangents=cotangent_inputs,
            outputs=outputs,
            gradients=gradients,
            steps=_needed(recorded.graph, gradients, {*outputs, *placeholders}),
            module=recorded,
        )


class OperatorCall:
    """A node's operator and arguments, with their known values."""

    def __init__(self, node: Node, root: torch.nn.Module, needs: set[Node]) -> None:
        self.node = node
        self.inputs: list[Node] = []
        self._leaves, self._spec = pytree.flatten((node.args, node.kwargs))
        for i, leaf in enumerate(self._leaves):
            if not isinstance(leaf, Node):
                continue
            if leaf.op == "get_attr":
                self._leaves[i] = getattr(root, str(leaf.target))  # a subgraph
            elif leaf not in self.inputs:
                self.inputs.append(leaf)
        self._needs = [node in needs for node in self.inputs]

        def describe(argument: Node) -> Any:
            if argument not in self.inputs:
                return id(getattr(root, str(argument.target)))
            return (
                self.inputs.index(argument),
                _describe(argument.meta["val"]),
                argument in needs,
            )

        self._function: Any = node.target
        self._error: Exception | None = None
        self.key = node.target, False, hashable((node.args, node.kwargs), describe)

    @property
    def wanted(self) -> list[int]:
        """The positions of the inputs whose gradients are needed."""
        pairs = enumerate(zip(self.inputs, self._needs, strict=True))
        return [i for i, (node, need) in pairs if need and is_differentiable(node.meta["val"])]

    def fresh(self, mode: FakeTensorMode) -> list[Any]:
        """Returns new fake inputs, which require grad where gradients are needed."""
        return [
            fake_copy(node.meta["val"], mode, need)
            for node, need in zip(self.inputs, self._needs, strict=True)
        ]

    def known_results(self, mode: FakeTensorMode) -> list[Any]:
        """Returns the node's results, leaf by leaf, of an operator whose shapes depend on data."""
        target = self.node.target
        if not isinstance(target, OpOverload) or torch.Tag.dynamic_output_shape not in target.tags:
            return []
        return [fake_copy(leaf, mode) for leaf in pytree.leaves(self.node.meta["val"])]

    def returning(self, results: list[Any]) -> AbstractContextManager[Any]:
        """Returns a context in which the operator has these results, if there are any."""
        if not results:
            return nullcontext()
        _, spec = pytree.flatten(self.node.meta["val"])
        return _KnownResultsMode(self.node.target, pytree.unflatten(results, spec))

    def refusal(self, error: Exception) -> GraphError:
        """Returns the error to raise, about the operator itself rather than its decomposition."""
        reason = str(self._error or error).strip().splitlines()
        return GraphError(
            f"torchlayers: differentiate: {locate(self.node)}, can't be differentiated: "
            f"{reason[0] if reason else type(error).__name__}"
        )

    def run(self, inputs: Sequence[Any]) -> Any:
        value_of = dict(zip(self.inputs, inputs, strict=True))
        leaves = [value_of[leaf] if isinstance(leaf, Node) else leaf for leaf in self._leaves]
        args, kwargs = pytree.unflatten(leaves, self._spec)
        return self._function(*args, **kwargs)

    def decompose(self, error: Exception) -> bool:
        """Decomposes an operator without derivative, as operators of backwards often are.

        Returns False if it is decomposed already, or can't be.
        """
        target, decomposed, arguments = self.key
        if decomposed or target not in lookup("torch._decomp.decomposition_table", {}):
            return False
        self._error = error
        self._function = lookup("torch._decomp.decomposition_table", {})[target]
        self.key = target, True, arguments
        return True


class _KnownResultsMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives an operator the results that its node records."""

    def __init__(self, target: Any, results: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = target
        self.results = results

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.results if func is self.target else func(*args, **(kwargs or {}))


def is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _describe(value: Any) -> Any:
    """Returns the properties of a value that a rule depends on."""
    if isinstance(value, Tensor):
        layout = (*value.shape, *value.stride())
        if not all(type(size) is int for size in layout):
            layout = tuple(map(str, layout))
        return layout, value.dtype, value.device
    return str(value)


def _result(graph: fx.Graph) -> Any:
    return next(iter(reversed(graph.nodes))).args[0]


def _dependent(graph: fx.Graph, sources: Sequence[Node]) -> set[Any]:
    """Returns the nodes that depend on the sources."""
    dependent = set(sources)
    for node in graph.nodes:
        if any(argument in dependent for argument in node.all_input_nodes):
            dependent.add(node)
    return dependent


def _needed(graph: fx.Graph, gradients: Sequence[Any], inputs: set[Any]) -> list[Node]:
    """Returns the nodes that compute the gradients, in order, without those that are given."""
    needed = set()
    waiting = [node for node in gradients if isinstance(node, Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed and node not in inputs:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]
