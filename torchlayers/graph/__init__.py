"""Reverse-mode differentiation of a whole graph, ahead of running it.

differentiate takes a TorchScript or FX graph and returns a Gradient, which has two graphs: the
forward graph, which also returns the values that the backward graph needs, and the backward graph.
The steps are those of torch's TorchScript executor: find the differentiable nodes, derive each
node's gradient, build the reverse graph, find and reduce its captures, and lift it out.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchlayers.graph.errors import GraphError as GraphError
from torchlayers.graph.gradient import Gradient as Gradient

__all__ = ["Gradient", "GraphError", "differentiate"]

Save: TypeAlias = Literal["min-compute", "min-memory"]
SAVE = get_args(Save)


def differentiate(
    fn_or_graph: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    argnums: int | Sequence[int] | None = None,
    save: Save = "min-compute",
) -> Gradient:
    """Returns the forward and the backward graph of a scripted or traced function or FX graph.

    The given graph is not modified.

    Args:
        fn_or_graph: a function or module from torch.jit.script or torch.jit.trace, a
            ``torch._C.Graph``, an FX GraphModule (from symbolic_trace, make_fx or torch.export)
            or an ExportedProgram.
        example_inputs: the arguments of one call. Required for an FX graph that has to be retraced
            and does not record the shapes of its inputs; a graph that does not record the shapes
            of its values, such as one from symbolic_trace, always has to be.
        argnums: which inputs to differentiate with respect to, as positions among the graph's
            inputs, pytrees flattened; () for none. Default: every floating-point or complex one.
            Parameters that require gradients are always included.
        save: which values the backward graph receives. ``"min-compute"`` saves what it needs and
            recomputes only what costs nothing (views, sizes); ``"min-memory"`` saves the fewest
            bytes that the rest can be computed from. TorchScript graphs support only the first.
    Returns:
        A :class:`Gradient`: readable, drawable, and callable like the original, with autograd
        attached.
    Raises:
        GraphError: the graph can't be differentiated. The message has the node, its source
            location and the reason.
        ArgnumsError: argnums names an input that does not exist, or one twice.
        TypeError: fn_or_graph has none of these types, or example_inputs is not a tuple.
        ValueError: save is neither of the two policies.
    Source: torch/csrc/jit/runtime/autodiff.cpp, which does this for TorchScript.
    Example:
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> gradient = differentiate(make_fx(torch.sin)(torch.zeros(2)))
        >>> outputs, captures = gradient.forward(torch.zeros(2))
        >>> gradient.backward(captures, torch.ones(2))
        (tensor([1., 1.]),)
    """
    if save not in SAVE:
        raise ValueError(
            f"torchlayers: differentiate: save must be one of {', '.join(map(repr, SAVE))}; "
            f"got {save!r}."
        )
    if not isinstance(example_inputs, (tuple, list, type(None))):
        raise TypeError(
            "torchlayers: differentiate: example_inputs must be a tuple of all arguments of a "
            f"call; got {type(example_inputs).__name__}. Write (x,) for x."
        )
    if isinstance(fn_or_graph, (GraphModule, ExportedProgram)):
        # Imported here, as torch.fx's tools take a while to load.
        from torchlayers.graph.fx.differentiate import differentiate_fx

        return differentiate_fx(fn_or_graph, example_inputs, argnums=argnums, save=save)
    if isinstance(
        fn_or_graph,
        (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch.Graph, torch.ScriptMethod),
    ):
        if save != "min-compute":
            raise ValueError(
                "torchlayers: differentiate: save='min-memory' is for FX graphs. Trace the "
                "function with torch.fx or torch.export, or leave it out."
            )
        # Likewise.
        from torchlayers.graph.torchscript import differentiate_script

        return differentiate_script(fn_or_graph, example_inputs, argnums=argnums)
    raise TypeError(
        "torchlayers: differentiate takes a scripted or traced function or module, a "
        "torch._C.Graph, an FX GraphModule or an ExportedProgram; got "
        f"{type(fn_or_graph).__name__}. Trace it first, with make_fx or torch.jit.script."
    )
