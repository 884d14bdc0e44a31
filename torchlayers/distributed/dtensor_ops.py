"""Operators that convert between DTensors and local tensors, and redistribute DTensors.

As operators they pass through all layers. A tensor of a level may wrap a DTensor; its placements
are then those of the DTensor, with dimensions numbered as the level sees them, without the batch
dimensions.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from torchlayers.core.errors import TransformError
from torchlayers.core.operator_rules import custom_rules, plain_derivatives
from torchlayers.core.private_names import private_class
from torchlayers.core.torch_private import functorch, is_batched_wrapper, is_wrapped
from torchlayers.distributed import dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import _StridedShard
else:
    _StridedShard = private_class("torch.distributed.tensor.placement_types._StridedShard")

_ops: Any = torch.ops.torchlayers

# Meshes by the string that represents them as an operator argument: the names of their groups.
_meshes: dict[str, DeviceMesh] = {}


def mesh_key(mesh: DeviceMesh) -> str:
    key = ",".join(str(mesh.get_group(dim).group_name) for dim in range(mesh.ndim))
    _meshes[key] = mesh
    return key


def encode_placements(placements: Sequence[Placement]) -> list[str]:
    """Encodes placements as strings, for an operator argument."""
    return [_encode_placement(placement) for placement in placements]


def _encode_placement(placement: Placement) -> str:
    if type(placement) is Shard:
        return f"S{placement.dim}"
    if type(placement) is _StridedShard:  # within the shards of another mesh dimension
        return f"S{placement.dim}/{placement.split_factor}"
    if isinstance(placement, Replicate):
        return "R"
    if isinstance(placement, Partial):
        return f"P{placement.reduce_op}"
    raise TransformError(
        f"torchlayers: a DTensor with placement {placement} can't be passed into or out of a "
        "transform: redistribute it to Shard or Replicate first."
    )


def decode_placements(placements: Sequence[str]) -> list[Placement]:
    return [_decode_placement(text) for text in placements]


def _decode_placement(text: str) -> Placement:
    if text[0] == "S":
        _, _, parts = text.partition("/")
        return (
            _StridedShard(shard_dim(text), split_factor=int(parts))
            if parts
            else Shard(shard_dim(text))
        )
    return Partial(text[1:]) if text[0] == "P" else Replicate()


def shard_dim(placement: str) -> int:
    """Returns the sharded dimension of a Shard placement."""
    return int(placement[1:].partition("/")[0])


def _of_dim(placement: str, dim: int) -> str:
    """Returns the Shard placement with the dimension replaced."""
    _, stroke, parts = placement.partition("/")
    return f"S{dim}{stroke}{parts}"


def placements_of(x: Tensor) -> list[str]:
    """Returns the placements of the DTensor that x wraps, with dimensions numbered as x's are."""
    if is_batched_wrapper(x):
        batch = functorch.maybe_get_bdim(x)
        return [
            _without(placement, batch) for placement in placements_of(functorch.get_unwrapped(x))
        ]
    if is_wrapped(x):
        return placements_of(functorch.get_unwrapped(x))
    assert isinstance(x, DTensor)
    return encode_placements(x.placements)


class _ShardedSamplesError(TransformError):
    """The samples of a vmap are on different ranks."""


def _without(placement: str, batch: int) -> str:
    if placement[0] != "S":
        return placement
    dim = shard_dim(placement)
    if dim == batch:
        raise _ShardedSamplesError(
            "torchlayers: a DTensor is sharded along this vmap's batch dimension, so its samples "
            "are on different ranks, and a sample can't be redistributed or made local. Pass mesh= "
            "to vmap, which runs each rank's samples on that rank."
        )
    return _of_dim(placement, dim - (dim > batch))


def _behind_a_batch(placements: list[str]) -> list[str]:
    return [
        _of_dim(placement, shard_dim(placement) + 1) if placement[0] == "S" else placement
        for placement in placements
    ]


def gradient_placements(
    placements: list[str], requested: Sequence[Placement] | None = None
) -> list[str]:
    """Returns the placements of a gradient: `requested` if given; else the value's, with Partial
    replaced by Replicate."""
    if requested is not None:
        return encode_placements(requested)
    return ["R" if placement[0] == "P" else placement for placement in placements]


# ---- kernels


def _arrived(tensor: Tensor) -> Tensor:
    is_waiting = hasattr(tensor, "trigger_wait")  # an AsyncCollectiveTensor of torch.distributed
    return tensor.wait() if is_waiting else tensor  # type: ignore[attr-defined]


def _place_at(x: Any, mesh: str, placements: list[str]) -> Any:
    return x.redistribute(_meshes[mesh], decode_placements(placements))


def local_tensor_of(x: Any, placements: list[Placement]) -> Tensor:
    """Returns this rank's local tensor of a DTensor redistributed to these placements."""
    share = 1
    if list(x.placements) != placements:
        # torch does not redistribute to Partial: each rank gets an equal share of a replicated
        # tangent instead.
        dealt = [
            dim
            for dim, (now, wanted) in enumerate(zip(x.placements, placements, strict=True))
            if now != wanted and wanted == Partial()
        ]
        for dim in dealt:
            share *= x.device_mesh.size(dim)
        reachable = [
            Replicate() if i in dealt else placement for i, placement in enumerate(placements)
        ]
        x = x.redistribute(x.device_mesh, reachable)
    local = _arrived(x._local_tensor)
    return local if share == 1 else local / share


def _from_local(
    x: Tensor, mesh: str, placements: list[str], cotangents: list[str], shape: list[int]
) -> Any:
    spec = dtensor.spec_of(_meshes[mesh], decode_placements(placements), shape, x.dtype)
    return dtensor.of_local(x.clone(), spec)


def _redistribute(
    mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> torch.Tensor:
    x, mesh, placements = args
    moved: Tensor = _place_at(x, mesh, placements)
    return moved.clone() if moved is x else moved


def _to_local(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
    x, _, placements, _ = args
    local = local_tensor_of(x, decode_placements(placements))
    return local.clone() if local is x._local_tensor else local


# ---- operators, which are linear, with their transposes and batching rules


_library: Any = torch.library.Library("torchlayers", "FRAGMENT")  # type: ignore[no-untyped-call]


def _operator(
    schema: str,
    transpose: Callable[..., Tensor],
    behind_a_batch: Callable[..., tuple[Any, ...]],
    of_dtensors: Callable[..., Tensor] | None = None,
    of_plain: Callable[..., Tensor] | None = None,
) -> Any:
    short_name = schema.partition("(")[0]
    name = f"torchlayers::{short_name}"
    _library.define(schema)
    op: Any = getattr(torch.ops.torchlayers, short_name).default
    if of_dtensors is not None:
        torch.library.register_torch_dispatch(name, DTensor, of_dtensors, lib=_library)
    if of_plain is not None:
        _library.impl(short_name, of_plain, "CompositeExplicitAutograd")

    @custom_rules.jvp_rule(op)
    def pushed(primals: Any, tangents: Any) -> Any:
        return op(*primals), op(tangents[0], *primals[1:])

    @custom_rules.vjp_rule(op)
    def pulled(cotangent: Any, primals: Any, result: Any) -> Any:
        x, *rest = primals
        return transpose(cotangent, _origin(x), *rest), *[None] * len(rest)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.origin, ctx.rest = _origin(inputs[0]), inputs[1:]

    def backward(ctx: Any, cotangent: Any) -> Any:
        return transpose(cotangent, ctx.origin, *ctx.rest), *[None] * len(ctx.rest)

    plain_derivatives.register(short_name, plain_derivatives.linear(op), backward, keep)

    def batched(info: Any, in_dims: Any, x: Tensor, *rest: Any) -> Any:
        in_front = x.movedim(in_dims[0], 0)
        return op(in_front, *behind_a_batch(in_front.shape[0], *rest)), 0

    torch.library.register_vmap(name, batched, lib=_library)
    return op


def _origin(x: Tensor) -> tuple[list[str], list[int]]:
    """Returns the placements of an operator's argument, [] for a plain tensor, and its shape."""
    inner = x
    while is_wrapped(inner):
        inner = functorch.get_unwrapped(inner)
    return placements_of(x) if isinstance(inner, DTensor) else [], list(x.shape)


redistributed: Any = _operator(
    "redistributed(Tensor x, str mesh, str[] placements) -> Tensor",
    lambda g, origin, mesh, placements: redistributed(g, mesh, gradient_placements(origin[0])),
    lambda size, mesh, placements: (mesh, _behind_a_batch(placements)),
    of_dtensors=_redistribute,
)

# The local tensor of x redistributed to `placements`; `cotangents` are its cotangent's placements.
to_local: Any = _operator(
    "to_local(Tensor x, str mesh, str[] placements, str[] cotangents) -> Tensor",
    lambda g, origin, mesh, placements, cotangents: redistributed(
        from_local(g, mesh, cotangents, gradient_placements(cotangents), origin[1]),
        mesh,
        gradient_placements(origin[0]),
    ),
    lambda size, mesh, placements, cotangents: (
        mesh,
        _behind_a_batch(placements),
        _behind_a_batch(cotangents),
    ),
    of_dtensors=_to_local,
)

# The DTensor with local tensor x; its cotangent is redistributed to `cotangents`.
from_local: Any = _operator(
    "from_local(Tensor x, str mesh, str[] placements, str[] cotangents, int[] shape) -> Tensor",
    lambda g, origin, mesh, placements, cotangents, shape: to_local(
        g, mesh, cotangents, cotangents
    ),
    lambda size, mesh, placements, cotangents, shape: (
        mesh,
        _behind_a_batch(placements),
        _behind_a_batch(cotangents),
        [size, *shape],
    ),
    of_plain=_from_local,
)


# ---- gradients


def redistribute_gradients(gradients: list[Tensor], arguments: list[Tensor]) -> list[Tensor]:
    """Redistributes gradients to match their arguments' placements.

    Partial ones are summed, in one collective for each mesh and dtype. The gradient of a plain
    tensor, which counts as replicated, is plain.
    """
    placed = [*gradients]
    parts: dict[tuple[str, torch.dtype], list[int]] = {}
    for i, (gradient, argument) in enumerate(zip(gradients, arguments, strict=True)):
        if not dtensor.is_dtensor_below(gradient):
            continue
        below: Any = dtensor.innermost_tensor(gradient)
        mesh = below.device_mesh
        is_plain = not dtensor.is_dtensor_below(argument)
        try:
            where = placements_of(gradient)
            wanted = ["R"] * mesh.ndim if is_plain else gradient_placements(placements_of(argument))
        except _ShardedSamplesError:  # a sample's gradient is where the sample is
            continue
        if (where, wanted) == (["Psum"], ["R"]):
            parts.setdefault((mesh_key(mesh), gradient.dtype), []).append(i)
        elif is_plain:
            placed[i] = to_local(gradient, mesh_key(mesh), wanted, wanted)
        elif where != wanted:
            placed[i] = redistributed(gradient, mesh_key(mesh), wanted)
    for (key, _), places in parts.items():
        local = [to_local(gradients[i], key, ["Psum"], ["R"]) for i in places]
        for i, total in zip(places, _ops.psum_invariant_each.default(local, key), strict=True):
            is_plain = not dtensor.is_dtensor_below(arguments[i])
            placed[i] = total if is_plain else from_local(total, key, ["R"], ["R"], [*total.shape])
    return placed
