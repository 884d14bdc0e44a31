"""A captured graph as readable Python, after each pass that changed it.

Nothing is kept for it: the function is captured again, on fake tensors like those of the signature.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.recording import CapturedGraph, discard_graph_source
from torchlayers.compiler.capture.reverse_pass import NoBackwardError
from torchlayers.compiler.capture.signature import Signature, TensorMetadata
from torchlayers.compiler.passes import simplify, steps
from torchlayers.compiler.passes.entries.captured_constants import values_of_constants
from torchlayers.core import pytree
from torchlayers.core.errors import location
from torchlayers.core.torch_private import FakeTensorMode, OpOverload


@discard_graph_source()
def stages(
    func: Callable[..., Any],
    signature: Signature,
    static: Callable[[Sequence[Any]], Sequence[Any]],
    fuses: bool,
) -> list[tuple[str, str]]:
    """The names of the passes that changed the graph, and its code after each.

    Args:
        func: the function that was compiled.
        signature: the signature.
        static: puts the static arguments among the others.
        fuses: whether the backend fuses operators.
    """
    captured = _captured_again(func, signature, static)
    texts: list[tuple[str, str]] = []
    with values_of_constants(captured):
        for passed, graph in steps(captured.graph, fuses):
            _add(texts, "captured" if passed == "recorded" else passed, graph)
        simplified = simplify(captured.graph, fuse_small=fuses)
    _add(texts, "handed to the backend", simplified, always=True)
    return texts


def _add(texts: list[tuple[str, str]], name: str, graph: GraphModule, always: bool = False) -> None:
    text = as_python(graph)
    if always or not texts or texts[-1][1] != text:
        texts.append((name, text))


def as_python(graph: GraphModule) -> str:
    """A graph as Python, with the user's lines where they are noted."""
    return "\n".join(_lines(graph))


def _captured_again(
    func: Callable[..., Any],
    signature: Signature,
    static: Callable[[Sequence[Any]], Sequence[Any]],
) -> CapturedGraph:
    mode = FakeTensorMode()
    outside = location().strip()

    def argument_of(leaf: Any) -> Any:
        if not isinstance(leaf, TensorMetadata):
            return leaf.value
        assert leaf.stride is not None  # sparse arguments have no entries
        with mode:
            tensor = torch.empty_strided(
                leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device
            )
            return tensor.requires_grad_(leaf.requires_grad)

    dynamic, kwargs = pytree.unflatten(
        [argument_of(leaf) for leaf in signature.leaves], signature.spec
    )
    args = static(dynamic)
    with signature.modes.restored(), torch.set_grad_enabled(signature.modes.grad):
        try:
            captured = record(
                func, args, kwargs, gradients=signature.modes.grad, guarded=True, lines=True
            )
        except NoBackwardError:
            captured = record(func, args, kwargs, guarded=True, lines=True)
    for node in captured.graph.graph.nodes:  # a reverse pass is no line of the function
        if node.meta.get("stack_trace") == outside:
            node.meta["stack_trace"] = ""
    return captured


# In place of a line of the program.
_NO_LINE = "of a derivative, or made by a pass"


def _lines(graph: GraphModule) -> Iterator[str]:
    nodes = [*graph.graph.nodes]
    inputs = ", ".join(node.name for node in nodes if node.op == "placeholder")
    yield f"def forward({inputs}):"
    previous = ""
    for node in nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            yield f"    return {node.args[0]!r}"
            continue
        line = (node.meta.get("stack_trace") or _NO_LINE).removeprefix("In ").removesuffix(".")
        if line != previous and (previous or line != _NO_LINE):
            yield f"    # {line}"
        previous = line
        yield f"    {node.name} = {_call(node)}"


def _call(node: Any) -> str:
    args = [repr(arg) for arg in node.args]
    if node.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if node.op == "get_attr":
        return f"self.{node.target}"
    target = f"torch.ops.{node.target}" if isinstance(node.target, OpOverload) else node.target
    args += [f"{name}={arg!r}" for name, arg in node.kwargs.items()]
    return f"{target}({', '.join(args)})"
