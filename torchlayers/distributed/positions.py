"""axis_index and axis_size: where on an axis, and how long it is."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers.distributed.axes import resolve

if TYPE_CHECKING:
    from torchlayers.distributed.axes import AxisLike

_ops: Any = torch.ops.torchlayers


def axis_index(axis: "AxisLike", device: torch.device | str | None = None) -> Tensor:
    """Index of the sample or rank on the axis, as a 0-dim integer tensor.

    Args:
        axis: as for :func:`psum`; of a tuple of axes, the last varies fastest.
        device: the device of the result.
    Raises:
        AxisError: no such axis is bound.
    Example:
        >>> from torchlayers.distributed import axis_index
        >>> torchlayers.vmap(lambda x: x + axis_index("batch"), axis_name="batch")(torch.zeros(3))
        tensor([0., 1., 2.])

    Source: jax.lax.axis_index.
    """
    resolved = resolve(axis, "axis_index")
    if isinstance(axis, tuple):
        place = axis_index(axis[0], device)
        for one in axis[1:]:
            place = place * axis_size(one) + axis_index(one, device)
        return place
    where = None if device is None else torch.device(device)
    index: Tensor = _ops.axis_index.default(where, resolved.keys[0])
    return index + resolved.start if resolved.start else index


def axis_size(axis: "AxisLike") -> int:
    """Number of samples or ranks on the axis.

    Args:
        axis: as for :func:`psum`.
    Raises:
        AxisError: no such axis is bound.
    Example:
        >>> from torchlayers.distributed import axis_size
        >>> torchlayers.vmap(lambda x: x / axis_size("batch"), axis_name="batch")(torch.ones(4))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])

    Source: jax.lax.axis_size.
    """
    return resolve(axis, "axis_size").size
