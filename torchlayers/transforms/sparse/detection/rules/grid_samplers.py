"""Grid samplers, by the weights that the operator gives its elements."""

import torch

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    union,
    union_last,
    union_over,
)
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.products import product

# Elements of a grid sampler's weights that are computed to find its structure.
_PROBED = 1 << 22


@rule(aten.grid_sampler_2d, aten.grid_sampler_3d, aten._grid_sampler_2d_cpu_fallback)
def grid_sampler(call: Call) -> IndexSets | None:
    x, grid = call["input"], call["grid"]
    ndim = x.dim() - 2
    sets, of_grid = call.sets(x), call.sets(grid)
    parts = []
    if sets is not None:
        places = call.known(grid)
        count, size = call.shape[2:].numel(), x.shape[2:].numel()
        if places is not None and x.shape[0] * count * size <= _PROBED:
            probe = torch.eye(size, dtype=places.dtype).reshape(1, size, *x.shape[2:])
            options = (call["interpolation_mode"], call["padding_mode"], call["align_corners"])
            op = aten.grid_sampler_2d if ndim == 2 else aten.grid_sampler_3d
            weights = op(probe.expand(x.shape[0], *probe.shape[1:]), places, *options)
            zeros = weights.flatten(2) == 0
            rows = sets.reshape([*x.shape[:2], size])
            terms = product(rows, None, None, zeros, (x.shape[0], x.shape[1], count))
            parts.append(terms[0].reshape(call.shape))
        else:
            whole = union_over(sets, range(2, x.dim()))
            parts.append(whole.reshape([*x.shape[:2], *[1] * ndim]))
    if of_grid is not None:
        parts.append(union_last(of_grid).moved(lambda ids: ids.unsqueeze(1)))
    return union(parts, call.shape)
