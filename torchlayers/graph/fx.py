"""Differentiation of FX graphs, step by step.

fx_program   the graph as flat, functional ATen operators
fx_rules     which nodes are differentiable; the gradient of a node
fx_reverse   the reverse graph
fx_save      what is saved for it, and what computed again
fx_lift      the reverse graph lifted out, and f and df told how they fit
"""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchlayers.graph.errors import GraphError
from torchlayers.graph.fx_arguments import Arguments
from torchlayers.graph.fx_lift import lift
from torchlayers.graph.fx_program import Program, program_of, value
from torchlayers.graph.fx_reverse import with_reverse
from torchlayers.graph.fx_save import bytes_of, choose
from torchlayers.graph.gradient import Gradient


def differentiate_fx(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    *,
    argnums: int | Sequence[int] | None,
    save: str,
) -> Gradient:
    """differentiate, for FX graphs."""
    with _no_collections():
        return _differentiate(graph, example_inputs, argnums, save)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Many nodes are made here and none is garbage, but each pass of Python's collector over
    them would look at all of torch's objects as well: almost half of the time for 2,000 nodes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _differentiate(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    argnums: int | Sequence[int] | None,
    save: str,
) -> Gradient:
    chosen = [argnums] if isinstance(argnums, int) else argnums
    program = program_of(graph, example_inputs, chosen)
    wanted = _wanted(program, chosen)
    joint = with_reverse(program, wanted)
    saved = choose(joint, save)
    lifted = lift(joint, saved, program.root)
    sizes = [bytes_of(value(node)) for node in lifted.captured]
    arguments = Arguments(program)
    count = len(joint.cotangents)

    def run_df(values: Sequence[Any]) -> Sequence[Any]:
        # The backward graph was recorded for contiguous cotangents.
        cotangents = [cotangent.contiguous() for cotangent in values[:count]]
        return lifted.df(*cotangents, *values[count:])  # type: ignore[no-any-return]

    return Gradient(
        lifted.f,
        lifted.df,
        real_outputs=len(joint.outputs),
        input_vjps=[place for place, _ in joint.cotangents],
        output_vjps=[place for place, _ in joint.gradients],
        captured_inputs=lifted.captured_inputs,
        captured_outputs=lifted.captured_outputs,
        run_f=lambda values: lifted.f(*values),
        run_df=run_df,
        flatten=arguments.flatten,
        unflatten=arguments.unflatten,
        saved_bytes=None if None in sizes else sum(sizes),  # type: ignore[arg-type]
    )


def _wanted(program: Program, argnums: Sequence[int] | None) -> list[int]:
    """The inputs to differentiate by: those chosen, and parameters that require gradients."""
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    candidates = range(program.arguments)
    if argnums is None:
        chosen = [i for i in candidates if _is_differentiable(value(inputs[i]))]
    else:
        chosen = list(argnums)
        for i in chosen:
            if i not in candidates:
                raise GraphError(
                    f"torchlayers: differentiate: argnums names input {i}, but the graph has "
                    f"{program.arguments}, pytrees flattened."
                )
            if not _is_differentiable(value(inputs[i])):
                raise GraphError(
                    f"torchlayers: differentiate: argnums names input {i} (`{inputs[i].name}`), "
                    "which is neither floating-point nor complex. Leave it out."
                )
    state = [
        program.arguments + i for i, entry in enumerate(program.state) if entry.read().requires_grad
    ]
    return sorted(set(chosen)) + state


def _is_differentiable(val: Any) -> bool:
    return isinstance(val, Tensor) and (val.is_floating_point() or val.is_complex())
