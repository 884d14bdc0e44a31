"""Step 4 for FX: chooses which values are saved for the backward graph, and which it recomputes.

Every value that the reverse nodes need is either saved or computed in the backward graph from
saved ones. Saving the fewest bytes is a minimum cut between what only the forward graph can compute
and what the reverse nodes need, where cutting through a value costs its bytes. The two policies
differ in what the backward graph may compute:

- min-compute: views and constants, which cost nothing, and helpers (which either graph can
  compute, so a sign may be saved instead of the value whose sign it is). Nothing is computed
  twice.
- min-memory: everything that is not random.
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers.core import pytree
from torchlayers.fx.min_cut import Network
from torchlayers.fx.nodes import is_random
from torchlayers.graph.fx.joint_graph import JointGraph
from torchlayers.graph.fx.normalize import is_view, value

# A value costs its bytes. Of two choices with the same cost, the cheaper one saves fewer values,
# inputs rather than temporaries, and the original's values rather than helpers.
_SCALE = 1 << 20
_INPUT, _PRIMAL, _HELPER = 1, 2, 3


def choose_residuals(joint: JointGraph, save: str) -> set[Node]:
    """Returns the values to save: the program's, or helpers that the forward graph computes."""
    needed = joint.needed()
    in_use = set(needed)
    network = Network()
    gradients = {node for _, node in joint.gradients}
    outputs = {node for node in joint.outputs if isinstance(node, Node)}
    for node in needed:
        if node in joint.reverse:
            continue
        network.edge((node, "in"), (node, "out"), _cost(node, joint, outputs))
        if node in joint.primal and not _may_repeat(node, save):
            network.edge("source", (node, "in"), None)
        for user in node.users:
            if user in joint.reverse and user in in_use:
                network.edge((node, "out"), "sink", None)
            elif user in in_use:
                network.edge((node, "out"), (user, "in"), None)
        if node in gradients:
            network.edge((node, "out"), "sink", None)
    forward = network.smallest_cut("source", "sink")
    return {node for node in needed if (node, "in") in forward and (node, "out") not in forward}


def bytes_of(val: Any) -> int | None:
    """Returns the size of a value in bytes, or None if its shape is symbolic."""
    if not isinstance(val, Tensor):
        return 8
    numel = val.numel()
    return numel * val.element_size() if isinstance(numel, int) else None


def _cost(node: Node, joint: JointGraph, outputs: set[Node]) -> int | None:
    """Returns None for what can't be saved: nodes with several values, and subgraphs."""
    val = value(node)
    if not isinstance(val, (Tensor, int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return None
    size = bytes_of(val)
    if size is None:
        assert isinstance(val, Tensor)
        size = val.element_size() * _hint(val)
    if node.op == "placeholder" or node in outputs:
        rank = _INPUT
    else:
        rank = _PRIMAL if node in joint.primal else _HELPER
    return size * _SCALE + rank


def _hint(val: Tensor) -> int:
    """Returns the number of elements in the example that a symbolic shape was traced with."""
    numel: Any = val.numel()
    return int(numel.node.hint) if numel.node.has_hint() else 1


def _may_repeat(node: Node, save: str) -> bool:
    """Whether the backward graph may recompute a value of the program."""
    if node.op == "placeholder":
        return False
    if node.op == "get_attr":
        return True
    # empty is not random, but it does not return the same values twice either.
    if is_random(node) or "empty" in str(node.target):
        return False
    return save == "min-memory" or _is_free(node)


def _is_free(node: Node) -> bool:
    if node.target is operator.getitem or is_view(node):
        return True
    if not any(isinstance(leaf, Tensor) for leaf in pytree.leaves(value(node))):
        return True  # sizes and their arithmetic
    return not any(_is_tensor(argument) for argument in node.all_input_nodes)


def _is_tensor(node: Node) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.leaves(value(node)))
