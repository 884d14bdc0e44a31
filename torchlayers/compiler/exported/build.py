"""Makes an ExportedFunction of a captured graph."""

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.exported.dynamic_dims import DimsOfTensor
from torchlayers.compiler.exported.exported_function import ExportedFunction
from torchlayers.compiler.exported.program import (
    check_dynamic,
    exported_program,
    lines_of_operators,
    refuse_draws,
    refuse_unexportable,
)
from torchlayers.compiler.exported.signature import function_signature
from torchlayers.compiler.passes.entries.captured_constants import simplify_captured
from torchlayers.compiler.passes.graph_queries import inputs_of
from torchlayers.core import pytree


def export_captured(
    name: str,
    captured_graph: CapturedGraph,
    leaves: list[Any],
    spec: pytree.TreeSpec,
    dims: Sequence[DimsOfTensor],
    examples: Sequence[Tensor],
) -> ExportedFunction:
    """Exports a captured function.

    Args:
        leaves, spec: of (args, kwargs), with a TensorMetadata for each tensor.
        dims: for each tensor among them, its dynamic dimensions.
        examples: these tensors.
    Raises:
        TransformError: the function does what a graph in a file can't do.
    """
    check_dynamic(name, inputs_of(captured_graph.graph), dims)
    captured_graph, graph = simplify_captured(captured_graph)
    refuse_unexportable(name, captured_graph, graph)
    refuse_draws(name, graph)
    open_dims = [[*of_tensor] for of_tensor in dims]
    signature = function_signature(name, captured_graph, graph, leaves, spec, open_dims)

    def for_compiler() -> Any:
        all_captured, fused = simplify_captured(captured_graph, fuse_small=True)
        return exported_program(fused, all_captured, signature, dims, examples, decompose=False)

    program = exported_program(graph, captured_graph, signature, dims, examples)
    lines = lines_of_operators(captured_graph.graph)
    return ExportedFunction(program, signature, functools.cache(for_compiler), lines)


def exported_for_compiler(
    name: str, captured_graph: CapturedGraph, leaves: list[Any], spec: pytree.TreeSpec
) -> ExportedFunction:
    """Exports a captured function for native code alone, which may draw random numbers."""
    captured_graph, graph = simplify_captured(captured_graph, fuse_small=True)
    refuse_unexportable(name, captured_graph, graph)
    signature = function_signature(name, captured_graph, graph, leaves, spec, ())
    signature.to_json()  # refuses what can't be described, before anything is compiled
    program = exported_program(graph, captured_graph, signature, decompose=False)
    return ExportedFunction(program, signature)
