"""DTensor methods inside a transform: on DTensors, and on tensors of a level that wrap one.

torch implements them as autograd.Functions for plain autograd (`from_local`, `to_local`,
`redistribute`). Inside a transform each is replaced by an operator that passes through all layers.
A tensor of a level is a torch.Tensor in Python, so `to_local` and the other attributes are added to
torch.Tensor while a layer is active, but exist only for tensors that wrap a DTensor.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import NotTensorError
from torchlayers.core.torch_private import is_wrapped
from torchlayers.distributed import dtensor
from torchlayers.distributed.sync_batch_norm import sync_batch_norm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement


def _placed() -> Any:
    return importlib.import_module("torchlayers.distributed.dtensor_ops")


def _from_local(
    x: Tensor,
    mesh: "DeviceMesh",
    placements: "Sequence[Placement]",
    run_check: bool,
    shape: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    grad_placements: "Sequence[Placement] | None" = None,
) -> Any:
    if dtensor.is_dtensor_below(x):
        return x  # the caller tested isinstance(x, DTensor), which is False for a wrapped one
    _add_attributes()
    placed = _placed()
    whole = [*x.shape] if shape is None else [*shape]
    where = placed.encode_placements(placements)
    for dim, placement in enumerate(where if shape is None else ()):
        if placement[0] == "S":
            whole[placed.shard_dim(placement)] *= mesh.size(dim)
    of_gradient = placed.gradient_placements(where, grad_placements)
    return placed.from_local(x, placed.mesh_key(mesh), where, of_gradient, whole)


def _to_local(x: Tensor, grad_placements: "Sequence[Placement] | None" = None) -> Any:
    if dtensor.is_dtensor(x) and is_wrapped(x._local_tensor):
        local = x._local_tensor  # torch made x inside the transform, around a tensor of its level
        return local.view_as(local)
    placed = _placed()
    where = placed.placements_of(x)
    of_gradient = placed.gradient_placements(where, grad_placements)
    return placed.to_local(x, placed.mesh_key(_mesh(x)), where, of_gradient)


def _redistribute(
    x: Tensor, mesh: "DeviceMesh", placements: "Sequence[Placement]", *options: Any
) -> Any:
    placed = _placed()
    return placed.redistributed(x, placed.mesh_key(mesh), placed.encode_placements(placements))


def _mesh(x: Tensor) -> "DeviceMesh":
    below = dtensor.innermost_tensor(x)
    assert dtensor.is_dtensor(below)
    return below.device_mesh


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.distributed.tensor._api", "_FromTorchTensor"): _from_local,
    ("torch.distributed.tensor._api", "_ToTorchTensor"): _to_local,
    ("torch.distributed.tensor._redistribute", "Redistribute"): _redistribute,
    ("torch.nn.modules._functions", "SyncBatchNorm"): sync_batch_norm,
}


def replacement_for(function: Any) -> Callable[..., Any] | None:
    """Returns the replacement for one of torch's distributed Functions in a transform, or None."""
    return _FUNCTIONS.get((function.__module__, function.__name__))


# ---- on tensors of a level


def _redistributed(
    x: Tensor,
    device_mesh: "DeviceMesh | None" = None,
    placements: "Sequence[Placement] | None" = None,
    *,
    async_op: bool = False,
    **options: Any,
) -> Any:
    return _redistribute(x, device_mesh or _mesh(x), _counted(x, placements or ()))


def _full_tensor(x: Tensor, *, grad_placements: "Sequence[Placement] | None" = None) -> Any:
    placed = _placed()
    everywhere = ["R"] * _mesh(x).ndim
    of_gradient = placed.gradient_placements(everywhere, grad_placements)
    return placed.to_local(x, placed.mesh_key(_mesh(x)), everywhere, of_gradient)


def _call_to_local(x: Tensor, *, grad_placements: "Sequence[Placement] | None" = None) -> Any:
    return _to_local(x, grad_placements)


def _placements(x: Tensor) -> "tuple[Placement, ...]":
    placed = _placed()
    return tuple(placed.decode_placements(placed.placements_of(x)))


def _counted(x: Tensor, placements: "Sequence[Placement]") -> "list[Placement]":
    """Returns the placements with non-negative dimensions."""
    from torch.distributed.tensor import Shard

    return [
        Shard(placement.dim % x.dim())
        if type(placement) is Shard and placement.dim < 0
        else placement
        for placement in placements
    ]


class _DTensorAttribute:
    """Descriptor for an attribute that only tensors of a level that wrap a DTensor have."""

    def __init__(self, name: str, value: Callable[..., Any], is_method: bool) -> None:
        self.name = name
        self.value = value
        self.is_method = is_method

    def __get__(self, tensor: Tensor | None, owner: type) -> Any:
        if tensor is None:
            return self  # accessed on the class, as for a property
        if not dtensor.is_dtensor_below(tensor):
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        return functools.partial(self.value, tensor) if self.is_method else self.value(tensor)


_ATTRIBUTES = {
    "to_local": _DTensorAttribute("to_local", _call_to_local, is_method=True),
    "full_tensor": _DTensorAttribute("full_tensor", _full_tensor, is_method=True),
    "redistribute": _DTensorAttribute("redistribute", _redistributed, is_method=True),
    "placements": _DTensorAttribute("placements", _placements, is_method=False),
    "device_mesh": _DTensorAttribute("device_mesh", _mesh, is_method=False),
}


def note_dtensor(tensor: Tensor) -> None:
    """Called with a tensor subclass instance that is about to be wrapped at a level.

    A DTensor adds the attributes to torch.Tensor, until no layer is active. Without DTensors it is
    left unchanged, since Dynamo, for example, inspects the attributes of classes, not of instances.
    """
    if dtensor.is_dtensor(tensor):
        _add_attributes()


def _add_attributes() -> None:
    if _C.any_layer():
        _C.add_attributes(torch.Tensor, _ATTRIBUTES)


def distribute_tensor(x: Tensor, mesh: "DeviceMesh", placements: "Sequence[Placement]") -> "Tensor":
    """Converts a tensor that is the same on all ranks to a DTensor; also works inside transforms.

    The forward sends nothing; gradients that come back in parts are communicated.

    Args:
        x: a tensor, the same on all ranks.
        mesh: a DeviceMesh.
        placements: one for each of the mesh's dimensions, Shard or Replicate.
    Returns:
        The DTensor; inside a transform a tensor of its level that wraps it, with a DTensor's
        ``to_local``, ``redistribute``, ``full_tensor``, ``placements`` and ``device_mesh``.
    Raises:
        NotTensorError: x is not a tensor.
    Example:
        >>> from torchlayers.distributed import distribute_tensor
        >>> def total(x, mesh):
        ...     return distribute_tensor(x.sin(), mesh, [Shard(0)]).full_tensor().sum()

    Source: torch.distributed.tensor.distribute_tensor.
    """
    if not isinstance(x, Tensor):
        raise NotTensorError(
            f"torchlayers: distribute_tensor: x must be a tensor, got {type(x).__name__}."
        )
    _add_attributes()
    placed = _placed()
    everywhere = ["R"] * mesh.ndim
    key = placed.mesh_key(mesh)
    whole = placed.from_local(x, key, everywhere, everywhere, list(x.shape))
    result: Tensor = placed.redistributed(
        whole, key, placed.encode_placements(_counted(x, placements))
    )
    return result
