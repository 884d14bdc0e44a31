"""Differentiates TorchScript graphs: differentiate_script. The pass is in C++, in csrc/graph/."""

from collections.abc import Sequence
from typing import Any

import torch

from torchlayers import _C
from torchlayers.graph.errors import GraphError
from torchlayers.graph.forward_backward import ForwardBackward
from torchlayers.graph.gradient import Gradient
from torchlayers.graph.torchscript_values import Arguments, assemble

# A ScriptFunction, ScriptModule, ScriptMethod or torch._C.Graph: torch has no common type for them.
Script = Any


def differentiate_script(
    fn_or_graph: Script,
    example_inputs: Sequence[Any] | None = None,
    *,
    argnums: int | Sequence[int] | None = None,
) -> Gradient:
    """Returns the forward and the backward graph of a scripted or traced function or module.

    The given graph is not modified. A module's parameters and buffers become the last inputs of
    ``f``; its other attributes, such as ``training``, become constants with their current values.
    Buffers that it writes to are returned by ``f`` after the original's outputs, and are updated
    by forward and by calls.

    Args:
        fn_or_graph: a function or module from torch.jit.script or torch.jit.trace, a method of
            such a module, or a ``torch._C.Graph``. The types of the latter are trusted: the shapes
            and dtypes that they have, and which values require grad. They are not trusted if no
            input requires grad, as in a trace of plain tensors.
        example_inputs: the arguments of one call. They determine which tensors have integers, and
            so are not differentiated, and how many tensors a list of them holds; a function that
            takes such a list can't be differentiated without them. Their shapes are not used.
        argnums: which inputs to differentiate with respect to, tuples and lists flattened.
            Default: every tensor whose type does not exclude it. Parameters that require gradients
            are always included.
    Returns:
        A :class:`Gradient` whose ``f`` and ``df`` are ``torch._C.Graph``.
    Raises:
        GraphError: the graph can't be differentiated; the message has the node, its source line
            and the reason. Or argnums names an input that does not exist or is not a tensor.
    Example:
        >>> import torchlayers.graph.torchscript as script
        >>> gradient = script.differentiate_script(torch.jit.trace(torch.exp, torch.zeros(2)))
        >>> outputs, captures = gradient.forward(torch.zeros(2))
        >>> gradient.backward(captures, torch.ones(2))
        (tensor([1., 1.]),)

    Source: torch/csrc/jit/runtime/autodiff.cpp.
    """
    prepared, arguments = _prepare(fn_or_graph, example_inputs, argnums)
    parts = _C.differentiate_graph(prepared.graph, False)
    f = _C.GraphProgram(parts.f)
    df = _C.GraphProgram(parts.df)
    halves = ForwardBackward(
        parts.f,
        parts.df,
        real_outputs=parts.f_real_outputs,
        input_vjps=parts.df_input_vjps,
        output_vjps=parts.df_output_vjps,
        captured_inputs=parts.df_input_captured_inputs,
        captured_outputs=parts.df_input_captured_outputs,
        run_f=f.run,
        run_df=df.run,
    )
    return Gradient(
        halves,
        flatten=arguments.flatten,
        unflatten=lambda outputs, args, kwargs: _returned(prepared, outputs),
    )


def _returned(prepared: _C.PreparedGraph, outputs: Sequence[Any]) -> Any:
    """Returns the original's result. Updates the buffers that the original would update."""
    values = iter(outputs)
    result = assemble(prepared.output, values)
    for i in prepared.written:
        # Bypasses the version counter, as batch_norm does: nodes that saved it don't read it.
        prepared.bound[i].data.copy_(next(values))
    return result


def steps(
    fn_or_graph: Script,
    example_inputs: Sequence[Any] | None = None,
    *,
    argnums: int | Sequence[int] | None = None,
) -> dict[str, str]:
    """Prints the forward and the reverse graph after each step of differentiate_script.

    Args:
        fn_or_graph, example_inputs, argnums: as in differentiate_script.
    Returns:
        The names of the steps, in order, with the graphs after each as text.
    Raises:
        GraphError: as in differentiate_script.
    Example:
        >>> import torchlayers.graph.torchscript as script
        >>> list(script.steps(torch.jit.trace(torch.exp, torch.zeros(2))))
        ['prepared', 'reversed', 'constants lifted', 'sizes placed', 'dead code removed', 'lifted']
    """
    prepared, _ = _prepare(fn_or_graph, example_inputs, argnums)
    return dict(_C.differentiate_graph(prepared.graph, True).steps)


def _prepare(
    fn_or_graph: Script,
    example_inputs: Sequence[Any] | None,
    argnums: int | Sequence[int] | None,
) -> tuple[_C.PreparedGraph, Arguments]:
    """Returns the graph to differentiate, and the conversion of its arguments."""
    schema: Any = None
    module: Any = None
    if isinstance(fn_or_graph, torch.Graph):
        graph = fn_or_graph
    elif isinstance(fn_or_graph, torch.jit.ScriptFunction):
        graph, schema = fn_or_graph.graph, fn_or_graph.schema
    else:
        method = (
            fn_or_graph._c._get_method("forward")
            if isinstance(fn_or_graph, torch.jit.ScriptModule)
            else fn_or_graph
        )
        graph, schema, module = method.graph, method.schema, method.owner
    arguments = Arguments(graph, schema, module is not None)
    examples = None if example_inputs is None else arguments.bind(*example_inputs)
    # A raw graph's types are part of its definition; a function's are those of the traced call.
    keep_types = isinstance(fn_or_graph, torch.Graph)
    prepared = _C.prepare_graph(graph, module, keep_types, examples)
    arguments.structures = prepared.inputs
    arguments.bound = prepared.bound
    arguments.written = prepared.written
    if argnums is not None:
        _select(prepared, argnums)
    return prepared, arguments


def _select(prepared: _C.PreparedGraph, argnums: int | Sequence[int]) -> None:
    """Marks the inputs to differentiate with respect to."""
    inputs = list(prepared.graph.inputs())
    count = len(inputs) - len(prepared.bound)
    selected = [False] * count
    for argnum in [argnums] if isinstance(argnums, int) else argnums:
        if not -count <= argnum < count:
            raise GraphError(
                f"torchlayers: differentiate: argnums names input {argnum}, and the graph has "
                f"{count}, tuples and lists flattened. Count from 0."
            )
        if not _C.may_require_grad(inputs[argnum % count]):
            raise GraphError(
                f"torchlayers: differentiate: input {argnum} is not a floating-point tensor, or "
                "the graph's types say that it requires no grad. Leave it out of argnums."
            )
        selected[argnum % count] = True
    _C.set_inputs_requiring_grad(prepared.graph, selected)
