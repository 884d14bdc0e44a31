"""Scans as inductor is given them: one operator each, whose body is compiled by itself.

Inductor would run the steps from Python. Here a body is compiled as a graph of its own, and the
scan is an operator that it knows nothing of, and calls; where all is a program in C++ the steps
run there (csrc/compiled/loop.h).
"""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.graph_queries import inputs_of, outputs_of

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class Body:
    """What a scan runs in each step.

    Attributes:
        name: the same for the same graph, in any process: inductor's cache on disk asks for it.
        run: how it is run, once it has been compiled.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.run: Run | None = None
        texts = [held.code for held in graph.modules() if isinstance(held, GraphModule)]
        values = [node.meta["val"] for node in inputs_of(graph)]
        # Code for symbols holds for sizes that meet the conditions that these do.
        sizes = [size for x in values for size in x.shape if isinstance(size, torch.SymInt)]
        kinds = [str(told) for told in (*values, *(size.node.hint for size in sizes))]
        self.name = hashlib.sha256("\n".join([*texts, *kinds]).encode()).hexdigest()[:32]


# While something can run them.
_bodies: weakref.WeakValueDictionary[str, Body] = weakref.WeakValueDictionary()


@torch.library.custom_op("torchlayers::repeat", mutates_args=())
def repeat(body: str, tensors: Sequence[Tensor], carried: int, sliced: int) -> list[Tensor]:
    """A scan by the name of its body: the last carry, and the ys."""
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


def take_out(graph: GraphModule) -> list[Body]:
    """Scans become operators; their bodies, and the bodies inside these ahead of them."""
    found: list[Body] = []
    for node in graph.graph.find_nodes(op="call_function", target=scan_op):
        held, carry, xs, captured = node.args
        assert isinstance(held, Node)
        inside = graph.get_submodule(str(held.target))
        assert isinstance(inside, GraphModule)
        found += take_out(inside)
        body = _bodies.setdefault((made := Body(inside)).name, made)
        found.append(body)
        node.target = torch.ops.torchlayers.repeat.default
        node.args = (body.name, [*carry, *xs, *captured], len(carry), len(xs))
        if not held.users:
            graph.graph.erase_node(held)
    if found:
        graph.recompile()
    return found


class WithBodies:
    """Compiled code that is run by inductor's own function, and what its scans run."""

    def __init__(self, code: Any, bodies: Sequence[Body]) -> None:
        self._code = code
        self._bodies = bodies

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        return self._code(tensors)  # type: ignore[no-any-return]
