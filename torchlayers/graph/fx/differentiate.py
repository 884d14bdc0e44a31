"""Differentiates FX graphs, step by step.

- normalize: the graph as flat, functional ATen operators; retrace, if it has to be traced
  again for that
- vjp_rules: which nodes are differentiable, and the gradient of a node
- joint_graph: the reverse graph
- residuals: which values are saved for it, and which are recomputed
- partition: the reverse graph lifted out, and how the two graphs' values correspond
- arguments: the original's arguments and results
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchlayers.core.garbage_collection import gc_disabled
from torchlayers.core.torch_private import functorch, torch_c
from torchlayers.fx.nodes import is_random
from torchlayers.graph.errors import GraphError
from torchlayers.graph.forward_backward import ForwardBackward
from torchlayers.graph.fx.arguments import Arguments, places
from torchlayers.graph.fx.joint_graph import build_joint_graph
from torchlayers.graph.fx.normalize import NormalizedGraph, is_plain, normalize_plain, value
from torchlayers.graph.fx.partition import partition
from torchlayers.graph.fx.residuals import bytes_of, choose_residuals
from torchlayers.graph.fx.retrace import Retrace
from torchlayers.graph.gradient import Gradient


def differentiate_fx(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    *,
    argnums: int | Sequence[int] | None,
    save: str,
) -> Gradient:
    """differentiate, for FX graphs."""
    layer: Any = (functorch.get_interpreter_stack() or [None])[-1]
    if layer is not None:
        raise GraphError(
            "torchlayers: differentiate: a graph can't be differentiated inside a transform "
            f"({layer.key().name.lower()}, level {layer.level()}). Do it outside; what it returns "
            "can be called inside."
        )
    # A graph's derivative does not depend on the modes that are active here.
    with gc_disabled(), torch.inference_mode(False), torch_c._DisableAutocast():
        return _differentiate(graph, example_inputs, argnums, save)


def _differentiate(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    argnums: int | Sequence[int] | None,
    save: str,
) -> Gradient:
    module = graph.module() if isinstance(graph, ExportedProgram) else graph
    assert isinstance(module, GraphModule)
    program = (
        normalize_plain(module)
        if is_plain(module)
        else Retrace(module, example_inputs, argnums).program()
    )
    arguments = Arguments(program)  # before the reverse graph is added to the program's graph
    wanted = _wanted(program, argnums)
    joint = build_joint_graph(program, wanted)
    saved = choose_residuals(joint, save)
    lifted = partition(joint, saved, program.root)
    sizes = [bytes_of(value(node)) for node in lifted.captured]
    count = len(joint.cotangents)

    def run_df(values: Sequence[Any]) -> Sequence[Any]:
        # The backward graph was captured for contiguous cotangents.
        cotangents = [cotangent.contiguous() for cotangent in values[:count]]
        return lifted.df(*cotangents, *values[count:])  # type: ignore[no-any-return]

    halves = ForwardBackward(
        lifted.f,
        lifted.df,
        real_outputs=len(joint.outputs),
        input_vjps=[place for place, _ in joint.cotangents],
        output_vjps=[place for place, _ in joint.gradients],
        captured_inputs=lifted.captured_inputs,
        captured_outputs=lifted.captured_outputs,
        run_f=lambda values: lifted.f(*values),
        run_df=run_df,
        draws_random_numbers=any(map(is_random, lifted.f.graph.nodes)),
        saved_bytes=None if None in sizes else sum(sizes),  # type: ignore[arg-type]
    )
    return Gradient(halves, flatten=arguments.flatten, unflatten=arguments.unflatten)


def _wanted(program: NormalizedGraph, argnums: int | Sequence[int] | None) -> list[int]:
    """Returns the positions of the chosen inputs, and of parameters that require gradients."""
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    chosen = places(argnums, program.arguments)
    if chosen is None:
        chosen = [i for i in range(program.arguments) if _is_differentiable(value(inputs[i]))]
    for i in chosen:
        if not _is_differentiable(value(inputs[i])):
            raise GraphError(
                f"torchlayers: differentiate: argnums names input {i} (`{inputs[i].name}`), "
                "which is neither floating-point nor complex. Leave it out."
            )
    state = [
        program.arguments + i for i, entry in enumerate(program.state) if entry.read().requires_grad
    ]
    return sorted(chosen) + state


def _is_differentiable(val: Any) -> bool:
    return isinstance(val, Tensor) and (val.is_floating_point() or val.is_complex())
