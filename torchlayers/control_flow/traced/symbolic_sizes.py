"""Symbolic sizes in the graphs of branches and loop bodies.

NOTE [A size that a body reads]
The graph of a body can only refer to the sizes of its inputs. So it gets one additional input for
each other symbol, a ruler: a tensor that has that size, and no elements.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import proxy_tensor

from torchlayers.core.device import CPU


def free_symbols(shapes: Iterable[Sequence[int]]) -> list[torch.SymInt]:
    """Returns the symbolic sizes of the enclosing graph's inputs that are in none of the shapes."""
    mode: Any = proxy_tensor.get_proxy_mode()
    if mode is None:
        return []
    known = [node.meta.get("val") for node in mode.tracer.graph.find_nodes(op="placeholder")]
    tensors = [x for x in known if isinstance(x, Tensor)]
    sizes = {str(size): size for x in tensors for size in _symbols_in(x.shape)}
    seen_here = {str(size) for shape in shapes for size in _symbols_in(shape)}
    return [size for name, size in sizes.items() if name not in seen_here]


def size_carriers(sizes: Sequence[torch.SymInt]) -> list[Tensor]:
    """Returns an empty tensor for each of these sizes. NOTE [A size that a body reads]."""
    return [torch.empty(size, 0, dtype=torch.bool, device=CPU) for size in sizes]


def _symbols_in(shape: Sequence[Any]) -> list[torch.SymInt]:
    return [size for size in shape if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol]
