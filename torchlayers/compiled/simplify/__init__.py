"""A recording made smaller: the same values from fewer operators.

A recording has what the layers did, one operator after the other: copies that guarded against
writes, views of views, derivatives computed twice. mutations.py comes first: after it an operator
writes nothing, so that a value may stand for another. Each pass is a function of a graph that
changes it; nodes.py has what they share; returned.py gives the caller what was recorded.
docs/compile-passes.md draws them.
"""

from collections.abc import Callable

import torch
from torch.fx import Graph, GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from torchlayers.compiled.simplify.common import share_common
from torchlayers.compiled.simplify.copies import drop_copies
from torchlayers.compiled.simplify.dead import drop_dead
from torchlayers.compiled.simplify.factors import share_factors
from torchlayers.compiled.simplify.identities import fold_constants
from torchlayers.compiled.simplify.mutations import without_mutations
from torchlayers.compiled.simplify.nodes import pin, refresh
from torchlayers.compiled.simplify.returned import keep, promised
from torchlayers.compiled.simplify.small import expand_small
from torchlayers.compiled.simplify.views import merge_views

Pass = Callable[[GraphModule], None]

PASSES: tuple[Pass, ...] = (
    drop_copies,
    share_common,
    merge_views,
    fold_constants,
    share_factors,
    merge_views,
    drop_copies,
    share_common,
)


def simplify(graph: GraphModule, fuse_small: bool = False) -> GraphModule:
    """The recording with fewer operators: a new graph with the same inputs and outputs.

    Results are the same within rounding. Random operators keep their number and order, inputs
    that are written are written once, at the end; what is returned shares memory with an input
    where it did. Values of new nodes are in ``meta["val"]`` as record has them.

    Args:
        graph: as torchlayers.compiled.record makes it. It stays as it is.
        fuse_small: for a compiler that fuses operators: small products as multiplications and
            sums. One after the other they take longer.
    Returns:
        A graph of the same signature. Where writes can't be removed, a copy of the graph.
    """
    passes = (*PASSES, expand_small, merge_views, share_common) if fuse_small else PASSES
    # What torch does to fake values here is no part of the caller's program.
    with torch.no_grad(), torch._C._DisableAutocast(), _disable_current_modes():
        promise = promised(graph)
        simplified = _copied(without_mutations(graph) or graph)
        if without_mutations(simplified) is not None:
            pin(simplified.graph)
            for simplification in passes:
                simplification(simplified)
                refresh(simplified.graph)
                drop_dead(simplified)
            keep(simplified, promise)
            drop_dead(simplified)
    simplified.graph.lint()
    simplified.recompile()
    return simplified


def _copied(graph: GraphModule) -> GraphModule:
    copy = Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    return GraphModule(graph, copy)
