"""Random draws of captured control flow by enclosing layers: vmaps and layers with a key."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchlayers.control_flow.batched.samples import without_function_modes
from torchlayers.core.torch_private import functorch, torch_c, vmap_interpreter


def batched_where_they_differ(beside: Sequence[Tensor]) -> list[Tensor]:
    """Returns a tensor batched by every vmap with randomness="different"; [] if there is none.

    A vmap skips an operator without batched inputs, and then what its functions draw would be the
    same for all samples. Passing this tensor prevents that.

    Args:
        beside: tensors whose device is used.
    """
    levels, sizes = [], []
    for interpreter in functorch.get_interpreter_stack() or ():
        if interpreter.key() == functorch.TransformType.Vmap:
            vmap = vmap_interpreter(interpreter)
            if vmap.randomness() == "different":
                levels.append(interpreter.level())
                sizes.append(vmap.batch_size())
    if not levels:
        return []
    with without_function_modes(), torch_c._DisableFuncTorch():
        token = torch.zeros(sizes, device=beside[0].device if beside else None)
        for level in levels:
            token = functorch._add_batch_dim(token, 0, level)
    return [token]
