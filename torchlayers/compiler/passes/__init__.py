"""Graph passes that simplify a captured graph: the same values from fewer operators.

A captured graph has the operators that the layers ran, in order: defensive copies, views of views,
derivatives computed twice. functionalize.py comes first: after it no operator writes to memory, so
one value may be replaced with an equal one. Each pass is a function that modifies a graph;
fx/nodes.py has their common helpers. control_flow_operands.py and output_aliasing.py restore the
strides and aliasing that control flow and the caller rely on. docs/compile-passes.md has diagrams.
"""

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.concatenate_slices import concatenate_slices
from torchlayers.compiler.passes.dead_code import drop_dead, drop_outputs
from torchlayers.compiler.passes.drop_copies import drop_copies
from torchlayers.compiler.passes.entries.read_entries import read_entries
from torchlayers.compiler.passes.fold_constants import fold_constants
from torchlayers.compiler.passes.functionalize import without_mutations
from torchlayers.compiler.passes.graph_copy import copied
from torchlayers.compiler.passes.hoist_unbatched import compute_once
from torchlayers.compiler.passes.loops.control_flow_operands import lay_out_operands
from torchlayers.compiler.passes.loops.hoist_invariants import hoist_invariants
from torchlayers.compiler.passes.loops.share_scan_steps import share_steps
from torchlayers.compiler.passes.merge_views import merge_views
from torchlayers.compiler.passes.output_aliasing import keep, output_contract
from torchlayers.compiler.passes.pass_errors import PassError, naming_pass
from torchlayers.compiler.passes.pool_gradients import mask_pooled
from torchlayers.compiler.passes.products.associate_products import associate_products
from torchlayers.compiler.passes.products.concatenate_factors import concatenate_factors
from torchlayers.compiler.passes.products.contract_adjoint import contract_adjoint
from torchlayers.compiler.passes.products.contract_outer_products import contract_outer
from torchlayers.compiler.passes.products.contract_traces import contract_traces
from torchlayers.compiler.passes.products.expand_small_products import expand_small
from torchlayers.compiler.passes.products.join_linear_sums import join_sums
from torchlayers.compiler.passes.products.share_factors import share_factors
from torchlayers.compiler.passes.products.share_scaled_rows import share_scaled
from torchlayers.compiler.passes.products.transpose_products import transpose_products
from torchlayers.compiler.passes.scatter_layout import lay_batches_innermost
from torchlayers.compiler.passes.seal_unstrided import seal, unseal
from torchlayers.compiler.passes.unfold_convolutions import expand_convolutions
from torchlayers.core.operators import higher_order
from torchlayers.core.torch_private import dispatch_modes, torch_c
from torchlayers.fx.cse import key_of, share_common
from torchlayers.fx.nodes import pin

Pass = Callable[[GraphModule], None]

# Two passes that undo each other would go on for ever; real graphs take two or three.
_MOST_ROUNDS = 6


class Stage(NamedTuple):
    """Passes that run one after the other, and why they run here."""

    passes: tuple[Pass, ...]
    why: str
    until_stable: bool = False  # whether they run again until none changes the graph


CLEAN_UP = Stage(
    (drop_copies, share_common, merge_views, fold_constants),
    "Each leaves work for the others, and every stage leaves work for these.",
    until_stable=True,
)
STAGES: tuple[Stage, ...] = (
    Stage((drop_outputs,), "An output that nothing reads would keep the passes from its inputs."),
    Stage((hoist_invariants,), "What a loop and the operators around it both compute is shared."),
    CLEAN_UP,
    Stage((read_entries,), "It replaces all that was computed only to be read."),
    CLEAN_UP,
    Stage(
        (transpose_products, share_factors, contract_outer),
        "Smaller products. Transposed factors come first: the other two match products as written.",
    ),
    CLEAN_UP,
    Stage((transpose_products,), "Contracted products end in views that a product can take in."),
    CLEAN_UP,
    Stage(
        (associate_products, contract_traces),
        "Fewer multiplications for a chain; only now is it known which products remain.",
    ),
    CLEAN_UP,
    Stage(
        (contract_adjoint, share_scaled, join_sums),
        "Fewer products for sums of them. These expand expressions, and need them in normal form.",
    ),
    CLEAN_UP,
    Stage(
        (concatenate_factors, concatenate_slices),
        "What is left of sums: the passes before read their terms.",
    ),
    CLEAN_UP,
    Stage((mask_pooled,), "Views are merged now, through which it finds what belongs together."),
    CLEAN_UP,
)
# For a compiler that fuses operators.
FUSING: tuple[Stage, ...] = (
    Stage((expand_convolutions,), "A convolution of few channels becomes a product."),
    CLEAN_UP,
    Stage((expand_small,), "A small product becomes multiplications and sums, which fuse."),
    CLEAN_UP,
    Stage(
        (compute_once, lay_batches_innermost),
        "Loops over the batch that remain: computed once, and vectorized.",
    ),
)


def simplify(graph: GraphModule, fuse_small: bool = False) -> GraphModule:
    """Returns a simplified copy of a captured graph, with the same inputs and outputs.

    Results are the same within rounding. Random operators keep their number and order. A mutated
    input is written once, at the end. An output shares memory with an input if it did before. New
    nodes have fake values in ``meta["val"]``, as captured ones do.

    Args:
        graph: from torchlayers.compiler.capture.record; it is not modified. Inputs that it writes
            must share no memory with other inputs.
        fuse_small: for a compiler that fuses operators: expands small products into
            multiplications and sums, which are slower if they are run one by one.
    Returns:
        A graph with the same signature. If writes can't be removed, a copy of the graph. A pass
        that raises an error is skipped with a warning.
    """
    left_out = set[str]()
    while True:
        try:
            with naming_pass(simplify.__name__, is_needed=True):
                return _simplified(graph, fuse_small, left_out)
        except PassError as failed:
            if failed.is_needed:
                failed.warn("The captured graph is used without simplification.")
                return copied(graph)
            failed.warn("That pass is skipped.")
            left_out.add(failed.name)


def _simplified(graph: GraphModule, fuse_small: bool, left_out: Collection[str]) -> GraphModule:
    *_, (last, simplified) = steps(graph, fuse_small, left_out)
    _simplify_inside(simplified, fuse_small=False)
    if last == keep.__name__ and share_steps.__name__ not in left_out:
        _share_steps(simplified)  # where writes remain, two scans may read different values
    if fuse_small:
        _simplify_inside(simplified, fuse_small=True)
    simplified.graph.lint()
    simplified.recompile()
    return simplified


def _simplify_inside(graph: GraphModule, fuse_small: bool) -> None:
    """Simplifies the subgraphs of control flow operators."""
    for node in graph.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        subgraph = getattr(graph, name)
        if not isinstance(subgraph, GraphModule):
            continue
        returned: Any = subgraph.graph.output_node().args[0]
        several = copied(subgraph)
        output = several.graph.output_node()
        output.args = ([output.args[0]] if isinstance(returned, Node) else [*output.args[0]],)  # type: ignore[misc]
        simplified = simplify(several, fuse_small)
        output = simplified.graph.output_node()
        outputs: Any = output.args[0]
        output.args = (outputs[0] if isinstance(returned, Node) else tuple(outputs),)
        simplified.recompile()
        setattr(graph, name, simplified)


def _share_steps(graph: GraphModule) -> None:
    if any(graph.graph.find_nodes(op="call_function", target=higher_order.scan)):
        with (
            naming_pass(share_steps.__name__),
            torch.no_grad(),
            torch_c._DisableAutocast(),
            dispatch_modes._disable_current_modes(),
        ):
            share_steps(graph)


def steps(
    graph: GraphModule, fuse_small: bool, left_out: Collection[str] = ()
) -> Iterator[tuple[str, GraphModule]]:
    """Yields each pass's name and the graph after it: one graph, which the next pass modifies.

    Raises:
        PassError: a pass raised an error.
    """
    yield "recorded", graph
    # Operations on fake values in here are not part of the caller's program.
    with torch.no_grad(), torch_c._DisableAutocast(), dispatch_modes._disable_current_modes():
        promise = output_contract(graph)
        functional = without_mutations(graph)
        simplified = copied(functional or graph)
        yield without_mutations.__name__, simplified
        if functional is None:
            return
        pin(simplified.graph)
        seal(simplified.graph)
        for stage in (*STAGES, *FUSING) if fuse_small else STAGES:
            passes = [candidate for candidate in stage.passes if candidate.__name__ not in left_out]
            for simplification in _scheduled(simplified, passes, stage.until_stable):
                with naming_pass(simplification.__name__):
                    simplification(simplified)
                    drop_dead(simplified)
                yield simplification.__name__, simplified
        unseal(simplified.graph)
        lay_out_operands(simplified)
        keep(simplified, promise)
        drop_dead(simplified)
        yield keep.__name__, simplified


def _scheduled(graph: GraphModule, passes: list[Pass], until_stable: bool) -> Iterator[Pass]:
    """Yields the passes, each to be run at once; in rounds, until one of them changes nothing."""
    if not until_stable:
        yield from passes
        return
    keys = _OperatorKeys()
    unchanged, before = 0, keys.describe(graph)
    for simplification in itertools.islice(itertools.cycle(passes), _MOST_ROUNDS * len(passes)):
        yield simplification
        after = keys.describe(graph)
        unchanged = unchanged + 1 if after == before else 0
        before = after
        if unchanged >= len(passes):
            return


class _OperatorKeys:
    """Describes a graph's operators and what they read, to tell whether a pass has changed any."""

    def __init__(self) -> None:
        # Computing the keys takes as long as many passes; a node's arguments are immutable.
        self._known: dict[Node, tuple[Any, Any, Any, Hashable]] = {}

    def describe(self, graph: GraphModule) -> list[Hashable]:
        return [*map(self._key, graph.graph.nodes)]

    def _key(self, node: Node) -> Hashable:
        target, args, kwargs = node.target, node.args, node.kwargs
        known = self._known.get(node)
        if (
            known is None
            or known[0] is not target
            or known[1] is not args
            or known[2] is not kwargs
        ):
            known = self._known[node] = (target, args, kwargs, key_of(node, args, kwargs))
        return known[3]
