"""Reverse-mode differentiation of a whole graph, ahead of running it.

A TorchScript or FX graph comes in; a Gradient comes out, which holds two graphs: the forward
one, which also returns what the backward one needs, and the backward one. What torch does with
TorchScript graphs inside its executor is the model: which nodes are differentiable, each
node's gradient, the reverse graph, what it captures, what of that can go, and lifting it out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchlayers.graph.errors import GraphError as GraphError
from torchlayers.graph.gradient import Gradient as Gradient

__all__ = ["Gradient", "GraphError", "differentiate"]

SAVE = ("min-compute", "min-memory")


def differentiate(
    fn_or_graph: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    argnums: int | Sequence[int] | None = None,
    save: str = "min-compute",
) -> Gradient:
    """The forward and the backward graph of a scripted or traced function, or of an FX graph.

    The graph that is given is left as it is.

    Args:
        fn_or_graph: a function or module of torch.jit.script or torch.jit.trace, a
            ``torch._C.Graph``; an FX GraphModule (of symbolic_trace, make_fx or torch.export)
            or an ExportedProgram.
        example_inputs: the arguments of one call. An FX graph that does not record the shapes
            of its values, as symbolic_trace's, needs them; so does one that has to be traced
            anew for other reasons, where it does not record them.
        argnums: which inputs to differentiate by, counted as the graph's inputs are, pytrees
            flattened; () for none. Default: every floating-point or complex one. Parameters
            that require gradients are always differentiated by.
        save: what the backward graph is given. ``"min-compute"`` saves what it needs and
            computes again only what costs nothing (views, sizes); ``"min-memory"`` saves the
            fewest bytes that the rest can be computed from. TorchScript graphs know the first.
    Returns:
        A :class:`Gradient`: readable, drawable, and callable as the original, with autograd
        attached.
    Raises:
        GraphError: the graph can't be differentiated. It says which node, where it comes from,
            and why.
        ArgnumsError: argnums names no input, or one twice.
        TypeError: fn_or_graph is none of these, or example_inputs no tuple.
        ValueError: save is neither word.
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
            "torchlayers: differentiate: example_inputs holds all arguments of a call, in a tuple; "
            f"got {type(example_inputs).__name__}. Write (x,) for x."
        )
    if isinstance(fn_or_graph, (GraphModule, ExportedProgram)):
        from torchlayers.graph.fx.differentiate import differentiate_fx

        return differentiate_fx(fn_or_graph, example_inputs, argnums=argnums, save=save)
    if isinstance(
        fn_or_graph,
        (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch._C.Graph, torch._C.ScriptMethod),
    ):
        if save != "min-compute":
            raise ValueError(
                "torchlayers: differentiate: save='min-memory' is for FX graphs. Trace the "
                "function with torch.fx or torch.export, or leave it out."
            )
        from torchlayers.graph.torchscript import differentiate_script

        return differentiate_script(fn_or_graph, example_inputs, argnums=argnums)
    raise TypeError(
        "torchlayers: differentiate takes a scripted or traced function or module, a "
        "torch._C.Graph, an FX GraphModule or an ExportedProgram; got "
        f"{type(fn_or_graph).__name__}. Trace it first, with make_fx or torch.jit.script."
    )
