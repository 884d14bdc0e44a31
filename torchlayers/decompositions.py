"""What an operator is made of, where torch has no forward-mode formula for it.

jvp asks here last of all: first come the rules in csrc/rules/, then torch's own formulas.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers import grid_sample

Decomposition = Callable[..., Any]


def find(name: str, overload: str) -> Decomposition | None:
    """The decomposition of the operator ``name.overload`` ("aten::cdist", ""), or None."""
    return _OURS.get(name) or _of_torch().get((name, overload))


@functools.cache
def _of_torch() -> dict[tuple[str, str], Decomposition]:
    return {
        (op._schema.name, op._schema.overload_name): function
        for op, function in torch._decomp.decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload)
    }


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Distances between the rows: (…, P, M) and (…, R, M) to (…, P, R)."""
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)


def _pdist(x: Tensor, p: float = 2) -> Tensor:
    """Distances between the rows of one matrix, each pair once: (N, M) to (N(N-1)/2,)."""
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[i] - x[j], p, dim=-1)


_OURS: dict[str, Decomposition] = {
    "aten::_cdist_forward": _cdist,
    "aten::_pdist_forward": _pdist,
    "aten::grid_sampler_2d": grid_sample.grid_sampler,
    "aten::grid_sampler_3d": grid_sample.grid_sampler,
}
