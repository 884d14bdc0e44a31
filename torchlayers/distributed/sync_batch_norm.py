"""SyncBatchNorm inside transforms, composed of differentiable operators.

torch implements it as an autograd.Function for plain autograd, with kernels that exist for GPUs
only. Both versions differentiate the sum of all ranks' results: the gradient of the input involves
communication, those of weight and bias are local to each rank.
"""

from typing import Any

import torch
from torch import Tensor

from torchlayers.distributed import axes

_ops: Any = torch.ops.torchlayers


def sync_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    eps: float,
    momentum: float,
    group: Any,
    ranks: int,
) -> Tensor:
    """Computes the result of SyncBatchNorm.apply, and updates the running statistics as it does."""
    axes.tell_autograd()
    channels, dims = x.shape[1], [0, *range(2, x.dim())]
    shape = [1, channels, *[1] * (x.dim() - 2)]
    is_low = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.float() if is_low else x
    count = wide.numel() // channels
    # Gathers each rank's mean, sum of squared deviations from it, and element count: one
    # collective, and as accurate as on one rank. A rank may have no elements.
    mean = wide.sum(dims) / max(count, 1)
    squares = ((wide - mean.view(shape)) ** 2).sum(dims)
    local = torch.cat([mean, squares, mean.new_full((1,), count)])
    everybodys = _ops.all_gather.default(local, 0, ranks, str(group.group_name))
    means, around, counts = everybodys.split([channels, channels, 1], 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    var = (around + counts * (means - mean) ** 2).sum(0) / total
    _follow(running_mean, mean, momentum)
    _follow(running_var, var * (total / (total - 1)), momentum)
    result: Tensor = (wide - mean.view(shape)) * (var + eps).rsqrt().view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(x.dtype)


def _follow(running: Tensor | None, now: Tensor, momentum: float) -> None:
    if running is not None:
        running.mul_(1 - momentum).add_(now.detach().to(running.dtype), alpha=momentum)
