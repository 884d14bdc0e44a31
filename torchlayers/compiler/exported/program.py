"""Turns a captured graph into a torch.export program of core ATen operators."""

import copyreg
from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import TensorMetadata
from torchlayers.compiler.capture.state.python_writes import PythonWrites
from torchlayers.compiler.exported.decompositions import decompositions, native_decompositions
from torchlayers.compiler.exported.dynamic_dims import DimsOfTensor
from torchlayers.compiler.exported.signature import FunctionSignature, example_of
from torchlayers.compiler.exported.symbolic_sizes import compute_sizes
from torchlayers.compiler.passes.graph_copy import copied
from torchlayers.compiler.passes.graph_queries import operators
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.core.operators import aten, higher_order
from torchlayers.fx.callbacks import CALLBACK_OPS
from torchlayers.fx.nodes import emit, is_effect, is_random, memory_of, value
from torchlayers.fx.size_steps import expression_of


class GraphOfTensors(nn.Module):
    """A captured graph as a module for torch.export, with the captured tensors as buffers.

    It takes the tensors among the arguments, by name, and returns those of the result.
    """

    def __init__(
        self, graph: GraphModule, captured_graph: CapturedGraph, signature: FunctionSignature
    ) -> None:
        super().__init__()
        self.graph = _with_separate_operands(_without_checks(copied(graph)))
        compute_sizes(self.graph)
        self._outputs = [out for out in captured_graph.outputs if out.source != "constant"]
        self._buffer_names = [f"captured_{i}" for i in range(len(captured_graph.captured))]
        for name, tensor in zip(self._buffer_names, captured_graph.captured, strict=True):
            self.register_buffer(name, tensor.detach().clone())
        tensors = [i for i, leaf in enumerate(signature.leaves) if isinstance(leaf, TensorMetadata)]
        self._positions = {place: i for i, place in enumerate(tensors)}
        parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in signature.input_names]

        def forward(*arguments: Tensor) -> tuple[Tensor, ...]:
            return self._run(arguments)

        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward

    def _run(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        captured = [getattr(self, name) for name in self._buffer_names]
        computed = self.graph(*arguments, *captured)
        sources = {"computed": computed, "argument": arguments, "captured": captured}
        results: list[Tensor] = []
        for source, which in self._outputs:
            place = self._positions[which] if source == "argument" else which
            result = sources[source][place]
            is_shared = source != "computed" or any(result is other for other in results)
            results.append(result.clone() if is_shared else result)
        return tuple(results)


def exported_program(
    graph: GraphModule,
    captured_graph: CapturedGraph,
    signature: FunctionSignature,
    dynamic: Sequence[DimsOfTensor] = (),
    examples: Sequence[Tensor] = (),
    *,
    decompose: bool = True,
) -> ExportedProgram:
    """Exports a captured graph with torch.export.

    Args:
        graph: the simplified graph of ``captured_graph``; it is not modified.
        signature: names the program's inputs and outputs.
        dynamic: for each input, its dynamic dimensions.
        examples: the inputs; empty tensors by default.
        decompose: to core ATen operators.
    Raises:
        TransformError: a size was to be dynamic, and the function needs it to be a number.
    """
    leaves = [leaf for leaf in signature.leaves if isinstance(leaf, TensorMetadata)]
    examples = tuple(examples) or tuple(map(example_of, leaves))
    module = GraphOfTensors(graph, captured_graph, signature)
    shapes = tuple(dims or None for dims in dynamic) if any(dynamic) else None
    make_leaf_spec_copyable()
    with torch.no_grad():
        try:
            program = torch.export.export(module, examples, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            if not any(dynamic) or "constraint" not in str(error).lower():
                raise
            raise TransformError(
                f"torchlayers: export: {signature.name} can't be exported with these dynamic "
                f"sizes. {_first_lines(error)}"
            ) from error
        if decompose:
            program = program.run_decompositions(decompositions())
            rename_outputs(program, signature.output_names)
        elif any(map(_needs_decomposition, program.graph.nodes)):
            program = program.run_decompositions(native_decompositions())
    return program


def check_dynamic(name: str, inputs: Sequence[Node], dynamic: Sequence[DimsOfTensor]) -> None:
    """Raises an error if a size that was to be dynamic became a number in the capture.

    Raises:
        TransformError: one did.
    """
    for node, dims in zip(inputs, dynamic, strict=False):
        for dim in dims:
            size = expression_of(value(node).shape[dim])
            if size.is_Integer:
                raise TransformError(
                    f"torchlayers: export: {name} needs {size} as the size of dimension {dim} of "
                    f"{node.name}, which can't be dynamic."
                )


def _first_lines(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:4])


def make_leaf_spec_copyable() -> None:
    """torch's exporter copies LeafSpecs, by a deprecated constructor; from now on, by another."""
    copyreg.pickle(type(_leaf_spec()), _copy_leaf)


def _copy_leaf(leaf: Any) -> Any:
    return _leaf_spec, ()


def _leaf_spec() -> Any:
    return pytree.flatten(0)[1]


def _needs_decomposition(node: Node) -> bool:
    return getattr(node.target, "namespace", "") == "torchlayers" or any(
        isinstance(arg, Node) and isinstance(value(arg), torch.SymInt)
        for arg in (node.args if node.target in _CONVOLUTIONS else ())
    )


_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def rename_outputs(program: ExportedProgram, names: Sequence[str]) -> None:
    """Names the nodes that compute results after the paths of these in the function's result."""
    taken = {node.name for node in program.graph.nodes}
    specs = [
        spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"
    ]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    for spec, name in zip(specs, names, strict=True):
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None or name in taken:
            continue
        readers = [
            other for other in program.graph_signature.output_specs if other.arg.name == node.name
        ]
        node._rename(name)
        for other in readers:
            other.arg.name = node.name
    program.graph_module.recompile()


def refuse_unexportable(name: str, captured_graph: CapturedGraph, graph: GraphModule) -> None:
    """Raises an error if a function does what a graph of operators in a file can't do.

    Raises:
        TransformError: it writes to tensors' attributes, calls Python, or prints.
    """
    effects = captured_graph.effects
    if any(effects if effects.writes.computed else effects._replace(writes=PythonWrites())):
        raise TransformError(
            f"torchlayers: export: {name} sets .data, .grad or requires_grad, stores a tensor or "
            "reads .grad, which an exported function can't do. Pass and return tensors instead."
        )
    for node in operators(graph):
        if node.target in CALLBACK_OPS:
            raise TransformError(
                f"torchlayers: export: {name} calls a pure_callback or io_callback, and a file "
                f"holds no Python code. {line_of(node)}Define an operator with "
                "torch.library.custom_op."
            )
        if is_effect(node):
            raise TransformError(
                f"torchlayers: export: {name} prints or checks values at each call, which an "
                f"exported function can't do. {line_of(node)}Leave that out, or return the values."
            )


def refuse_draws(name: str, graph: GraphModule) -> None:
    """Raises an error if the function draws random numbers from a generator's state.

    Raises:
        TransformError: it does.
    """
    for node in operators(graph):
        if is_random(node):
            raise TransformError(
                f"torchlayers: export: {name} draws random numbers with {node.target}, whose "
                f"generator an exported function does not have. {line_of(node)}Draw with a key "
                "that is an argument (torchlayers.random), or pass the numbers."
            )


def line_of(node: Node) -> str:
    """The user's line that called the operator, as a sentence, if it is known."""
    line = str(node.meta.get("stack_trace") or "").strip()
    return f"{line} " if line else ""


def lines_of_operators(graph: GraphModule) -> dict[str, str]:
    """The user's first line that called each operator of a captured graph, by its name."""
    lines: dict[str, str] = {}
    for node in operators(graph):
        lines.setdefault(str(node.target), line_of(node))
    return lines


def _without_checks(graph: GraphModule) -> GraphModule:
    """Drops checks of a factorization: where it fails, results are infinite or nan."""
    for subgraph in graph.modules():
        if isinstance(subgraph, GraphModule):
            check = aten._linalg_check_errors.default
            for node in subgraph.graph.find_nodes(op="call_function", target=check):
                subgraph.graph.erase_node(node)
    return graph


def _with_separate_operands(graph: GraphModule) -> GraphModule:
    """Copies loop operands that share memory: torch.export requires separate memory for each."""
    for subgraph in graph.modules():
        if not isinstance(subgraph, GraphModule):
            continue
        for loop in (higher_order.scan, higher_order.while_loop):
            for node in subgraph.graph.find_nodes(op="call_function", target=loop):
                _copy_operands(node)
        subgraph.recompile()
    return graph


def _copy_operands(loop: Node) -> None:
    taken: set[Node] = set()

    def copy_operand(operand: Node) -> Node:
        if not isinstance(value(operand), Tensor):
            return operand
        if (memory := memory_of(operand)) in taken:
            return emit(loop, aten.clone.default, operand)
        taken.add(memory)
        return operand

    loop.args = torch.fx.node.map_arg(loop.args, copy_operand)
