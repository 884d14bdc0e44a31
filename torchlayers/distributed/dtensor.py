"""DTensor helpers for transforms: predicates, construction, and chunks of a sharded batch."""

import copy
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from torchlayers.core.operators import c10d_functional
from torchlayers.core.private_names import private
from torchlayers.core.torch_private import functorch, is_wrapped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

dtensor_spec = private("torch.distributed.tensor._dtensor_spec")


def is_dtensor(value: Any) -> "TypeGuard[DTensor]":
    """Whether value is a DTensor. Does not import torch.distributed.tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_dtensor_below(tensor: Tensor) -> bool:
    """Whether the tensor inside the wrappers of all levels is a DTensor."""
    return "torch.distributed.tensor" in sys.modules and is_dtensor(innermost_tensor(tensor))


def innermost_tensor(tensor: Tensor) -> Tensor:
    """Returns the innermost tensor, inside the grad, jvp and vmap wrappers of all levels."""
    while is_wrapped(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def redistribute_gradients(gradients: list[Tensor], arguments: list[Tensor]) -> list[Tensor]:
    """Redistributes gradients that are DTensors to match their arguments' placements."""
    if not any(is_dtensor_below(gradient) for gradient in gradients):
        return gradients
    placed: Any = importlib.import_module("torchlayers.distributed.dtensor_ops")
    redistributed: list[Tensor] = placed.redistribute_gradients(gradients, arguments)
    return redistributed


def spec_of(
    mesh: "DeviceMesh",
    placements: "Sequence[Placement]",
    shape: Sequence[int],
    dtype: torch.dtype,
) -> Any:
    """Returns the DTensorSpec of a contiguous DTensor of this global shape."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    meta = dtensor_spec.TensorMeta(torch.Size(shape), tuple(strides[: len(shape)][::-1]), dtype)
    return dtensor_spec.DTensorSpec(mesh, tuple(placements), tensor_meta=meta)


def of_local(local: Tensor, spec: Any) -> "DTensor":
    """Returns the DTensor whose shard on this rank is `local`."""
    from torch.distributed.tensor import DTensor

    local = local.contiguous()
    if not local.requires_grad:  # without from_local, which takes longer than a small vmap
        make: Any = DTensor
        result: DTensor = make(local, copy.copy(spec), requires_grad=False)
        return result
    return DTensor.from_local(
        local,
        spec.mesh,
        spec.placements,
        run_check=False,
        shape=spec.tensor_meta.shape,
        stride=spec.tensor_meta.stride,
    )


def placed_like(block: Tensor, leaf: Tensor) -> Tensor:
    """Distributes a stack of tensors, replicated on all ranks, with the placements of the DTensor
    `leaf`, one of the tensors."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    leaf = innermost_tensor(leaf)
    assert is_dtensor(leaf)
    placements = [
        Shard(placement.dim + 1) if isinstance(placement, Shard) else Replicate()
        for placement in leaf.placements
    ]
    return distribute_tensor(block, leaf.device_mesh, placements, src_data_rank=None)


def is_sharded(leaves: list[Any], dims: list[int | None]) -> bool:
    """Whether any leaf is a DTensor that is sharded along its batch dimension."""
    return any(
        dim is not None and is_dtensor(leaf) and _mesh_dim(leaf, dim) is not None
        for leaf, dim in zip(leaves, dims, strict=True)
    )


class LocalChunks:
    """Chunks of a sharded batch, each with the same range of every rank's samples.

    ``narrow`` on a DTensor along its sharded dimension gathers all of it on each rank. A chunk
    that takes a part of every shard needs no communication, and its samples are in the batch's
    order once the chunks' shards are joined.
    """

    def __init__(self, leaves: list[Any], dims: list[int | None], batch_size: int) -> None:
        sharded, dim = next(
            (leaf, dim)
            for leaf, dim in zip(leaves, dims, strict=True)
            if dim is not None and is_dtensor(leaf) and _mesh_dim(leaf, dim) is not None
        )
        self.mesh = sharded.device_mesh
        mesh_dim = _mesh_dim(sharded, dim)
        assert mesh_dim is not None
        self.mesh_dim = mesh_dim
        self.ranks = self.mesh.size(mesh_dim)
        self.batch_size = batch_size
        self.largest = -(-batch_size // self.ranks)  # as torch.chunk splits
        self.leaves = [
            leaf if dim is None else self._sharded(leaf, dim)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
        self.dims = dims

    def size_of(self, start: int, size: int) -> int:
        """Returns the number of samples, over all ranks, in the chunk that begins at index `start`
        of each rank's samples."""
        sizes = [
            min(self.largest, max(self.batch_size - rank * self.largest, 0))
            for rank in range(self.ranks)
        ]
        return sum(max(min(start + size, length) - start, 0) for length in sizes)

    def largest_of_all(self, number: int) -> int:
        """Returns the maximum of `number` over all ranks, so that they use the same chunks."""
        largest = torch.tensor(number, device=self.mesh.device_type)
        for dim in range(self.mesh.ndim):
            group = self.mesh.get_group(dim).group_name
            largest = c10d_functional.wait_tensor(c10d_functional.all_reduce(largest, "max", group))
        return int(largest)

    def narrow(self, start: int, size: int) -> list[Any]:
        """Returns the chunk's leaves."""
        return [
            leaf if dim is None else self._narrowed(leaf, dim, start, size)
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]

    def join(self, parts: list[Any], dim: int) -> Any:
        """Joins the chunks' results into one, sharded along the batch dimension."""
        dim = dim % parts[0].dim()
        if not is_dtensor(parts[0]):
            return torch.cat(parts, dim)
        local = torch.cat([self._sharded(part, dim).to_local() for part in parts], dim)
        return self._of_local(local, self._sharded(parts[0], dim), dim, self.batch_size)

    def _sharded(self, leaf: Any, dim: int) -> Any:
        if not is_dtensor(leaf) or _mesh_dim(leaf, dim) == self.mesh_dim:
            return leaf
        from torch.distributed.tensor import Shard

        placements = list(leaf.placements)
        placements[self.mesh_dim] = Shard(dim)
        return leaf.redistribute(self.mesh, placements)

    def _narrowed(self, leaf: Any, dim: int, start: int, size: int) -> Any:
        if not is_dtensor(leaf):
            return leaf
        local = leaf.to_local()
        own_start = min(start, local.size(dim))
        part = local.narrow(dim, own_start, min(size, local.size(dim) - own_start))
        return self._of_local(part, leaf, dim, self.size_of(start, size))

    def _of_local(self, local: Tensor, like: Any, dim: int, size: int) -> Any:
        shape = list(like.shape)
        shape[dim] = size
        return of_local(local, spec_of(self.mesh, like.placements, shape, local.dtype))


def _mesh_dim(tensor: "DTensor", dim: int) -> int | None:
    """Returns the mesh dimension over which the tensor's dimension `dim` is sharded, or None."""
    for place, placement in enumerate(tensor.placements):
        if placement.is_shard(dim):
            return place
    return None
