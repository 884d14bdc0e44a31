"""Control flow under every layer: branches, loops and scans, with batched predicates too.

If a predicate has one value, its branch runs, and loops run in Python: the layers see plain
operators. If it is batched, each branch runs under a separate vmap (``batched.samples``).
"""

from torchlayers.control_flow import torch_operators as torch_operators
from torchlayers.control_flow.associative_scan import associative_scan as associative_scan
from torchlayers.control_flow.cond import cond as cond
from torchlayers.control_flow.fori_loop import fori_loop as fori_loop
from torchlayers.control_flow.map import map as map
from torchlayers.control_flow.scan import scan as scan
from torchlayers.control_flow.sequential_vmap import sequential_vmap as sequential_vmap
from torchlayers.control_flow.switch import switch as switch
from torchlayers.control_flow.while_loop import while_loop as while_loop

__all__ = [
    "associative_scan",
    "cond",
    "fori_loop",
    "map",
    "scan",
    "sequential_vmap",
    "switch",
    "while_loop",
]
