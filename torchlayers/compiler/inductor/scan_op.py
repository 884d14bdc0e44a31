"""Lowers scans for Inductor: each becomes one custom operator, whose body is compiled separately.

Inductor would run the steps from Python. Here, the body is compiled as a separate graph, and
Inductor calls the scan as an opaque operator. If the whole graph becomes a C++ program, the steps
run in C++ as well (csrc/compiled/loop.h).
"""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.graph_queries import inputs_of, outputs_of
from torchlayers.core.operators import higher_order

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class ScanBody:
    """The body of a scan.

    Attributes:
        name: the same for equal graphs in every process, as Inductor's cache on disk requires.
        run: runs the body, once it has been compiled.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.run: Run | None = None
        texts = [module.code for module in graph.modules() if isinstance(module, GraphModule)]
        values = [node.meta["val"] for node in inputs_of(graph)]
        # Code for symbolic sizes is only valid under guards that these sizes (the hints) satisfy.
        sizes = [size for x in values for size in x.shape if isinstance(size, torch.SymInt)]
        kinds = [str(fake) for fake in (*values, *(size.node.hint for size in sizes))]
        self.name = hashlib.sha256("\n".join([*texts, *kinds]).encode()).hexdigest()[:32]


# Bodies by name, as long as something can run them.
_bodies: weakref.WeakValueDictionary[str, ScanBody] = weakref.WeakValueDictionary()


@torch.library.custom_op("torchlayers::repeat", mutates_args=())
def repeat(body: str, tensors: Sequence[Tensor], carried: int, sliced: int) -> list[Tensor]:
    """Runs a scan, given the name of its body; returns the last carry and the ys."""
    run = _bodies[body].run
    assert run is not None
    carry, xs = tensors[:carried], tensors[carried : carried + sliced]
    rows = []
    for step in zip(*xs, strict=True):
        results = run([x.contiguous() for x in (*carry, *step, *tensors[carried + sliced :])])
        carry = results[:carried]
        rows.append(results[carried:])
    return [*carry, *map(torch.stack, zip(*rows, strict=True))]


@repeat.register_fake
def _(body: str, tensors: Sequence[Tensor], carried: int, sliced: int) -> list[Tensor]:
    results = [node.meta["val"] for node in outputs_of(_bodies[body].graph)]
    length = tensors[carried].shape[0]
    carry = [torch.empty_like(x) for x in results[:carried]]
    return [*carry, *(y.new_empty(length, *y.shape) for y in results[carried:])]


def extract_scans(graph: GraphModule) -> list[ScanBody]:
    """Replaces scans by operators; returns their bodies, each after the bodies nested in it."""
    bodies: list[ScanBody] = []
    for node in graph.graph.find_nodes(op="call_function", target=higher_order.scan):
        body_node, carry, xs, captured = node.args
        assert isinstance(body_node, Node)
        inside = graph.get_submodule(str(body_node.target))
        assert isinstance(inside, GraphModule)
        bodies += extract_scans(inside)
        body = _bodies.setdefault((new := ScanBody(inside)).name, new)
        bodies.append(body)
        node.target = torch.ops.torchlayers.repeat.default
        node.args = (body.name, [*carry, *xs, *captured], len(carry), len(xs))
        if not body_node.users:
            graph.graph.erase_node(body_node)
    if bodies:
        graph.recompile()
    return bodies


class WithScanBodies:
    """Compiled code run by Inductor's wrapper; also keeps the bodies of its scans alive."""

    def __init__(self, code: Any, bodies: Sequence[ScanBody]) -> None:
        self._code = code
        self._bodies = bodies

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        return self._code(tensors)  # type: ignore[no-any-return]
