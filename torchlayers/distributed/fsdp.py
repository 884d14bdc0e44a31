"""functional_call for modules of fully_shard: gathers the given tensors like its own parameters.

torch gathers a module's parameters in its forward hooks, and reduces their gradients in hooks of
plain autograd. While functional_call runs, hooks of ours replace these. They gather the tensors
given to a module with differentiable operators, in one collective per module, and remove the
gathered ones when its forward ends. The transpose is one reduce_scatter: what is differentiated is
the sum of all ranks' results.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.core.torch_versions import mixed_precision, parameter_groups, unsharded_spec
from torchlayers.distributed import axes, dtensor, dtensor_ops

_ops: Any = torch.ops.torchlayers


def hooks(module: nn.Module) -> tuple[tuple[dict[Any, Any], Any, Any], ...]:
    """Returns the settings (dict, key, value) by which functional_call replaces torch's hooks."""
    axes.tell_autograd()
    units: dict[int, _FsdpUnit] = {}
    settings: list[tuple[dict[Any, Any], Any, Any]] = []
    for submodule in module.modules():
        if not isinstance(submodule, FSDPModule):
            continue
        state = submodule._get_fsdp_state()
        unit = units.setdefault(id(state), _FsdpUnit(state))
        ids = _ids(state)
        before, after = submodule._forward_pre_hooks, submodule._forward_hooks
        settings += [(before, key, unit.gather) for key in before if key in ids]
        settings += [(after, key, unit.take_out) for key in after if key in ids]
    return tuple(settings)


def _ids(state: Any) -> set[int]:
    """Returns the keys of the state's forward hooks."""
    handles: list[Any] = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
    return {
        handle_id.id for handle in handles for handle_id in getattr(handle, "handles", [handle])
    }


class _FsdpUnit:
    """One call of a group of modules whose parameters are gathered together."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.waiting: set[nn.Module] = set()  # modules whose forward has yet to end
        self.sharded: list[tuple[dict[str, Any], str, Any]] = []

    def gather(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replaces FSDPState._pre_forward."""
        if not self.sharded:
            self.waiting = set(self.state._modules)
            for group in parameter_groups(self.state):
                self._gather(group)
        policy = self.state._mp_policy
        if not policy.cast_forward_inputs:
            return args, kwargs
        return _cast_all(args, policy.param_dtype), _cast_all(kwargs, policy.param_dtype)

    def take_out(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replaces FSDPState._post_forward."""
        self.waiting.discard(module)
        if not self.waiting:
            for parameters, name, value in self.sharded:
                parameters[name] = value
            self.sharded.clear()
        return _cast_all(output, self.state._mp_policy.output_dtype)

    def _gather(self, group: Any) -> None:
        local = [_current(parameter) for parameter in group.fsdp_params]
        for parameter, whole in zip(group.fsdp_params, _gathered(group, local), strict=True):
            for module, name in _places(parameter):
                self.sharded.append((module._parameters, name, module._parameters[name]))
                module._parameters[name] = whole
                if isinstance(module, nn.RNNBase):
                    module._flat_weights = [
                        module._parameters.get(name) for name in module._flat_weights_names
                    ]


def _places(parameter: Any) -> Iterator[tuple[Any, str]]:
    info = parameter._module_info
    yield info.module, info.param_name
    yield from zip(info.shared_modules, info.shared_param_names, strict=True)


def _current(parameter: Any) -> Any:
    """Returns the tensor that is in the parameter's place: the given one, or its own, sharded."""
    module, name = next(_places(parameter))
    value = module._parameters[name]
    is_gathered = value is getattr(parameter, "_unsharded_param", None)
    return parameter.sharded_param if is_gathered else value


def _gathered(group: Any, values: list[Any]) -> list[Any]:
    """Returns the values with DTensors gathered: those of one dtype and mesh in one collective."""
    policies = [mixed_precision(group, parameter) for parameter in group.fsdp_params]
    whole: list[Any] = [*values]
    together: dict[Any, list[_Shard]] = {}
    for place, (parameter, value) in enumerate(zip(group.fsdp_params, values, strict=True)):
        if isinstance(value, Tensor) and dtensor.is_dtensor_below(value):
            shard = _Shard(place, parameter, value)
            policy = policies[place]
            local = _cast(shard.local, policy.reduce_dtype or policy.param_dtype)
            shard.local = local.to(group.device)
            together.setdefault((local.dtype, shard.gathered, shard.shared), []).append(shard)
    for shards in together.values():
        for shard, joined in zip(shards, _joined(shards), strict=True):
            whole[shard.place] = shard.as_parameter(joined)
    return [
        _cast(tensor, policy.param_dtype) for tensor, policy in zip(whole, policies, strict=True)
    ]


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None or not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(dtype)


def _cast_all(values: Any, dtype: torch.dtype | None) -> Any:
    """Casts the tensors in a module's inputs or outputs."""
    if dtype is None:
        return values
    return pytree.map_leaves(functools.partial(_cast, dtype=dtype), values)


class _Shard:
    """A rank's shard of a parameter, and how the whole is made from all ranks' shards."""

    def __init__(self, place: int, parameter: Any, value: Any) -> None:
        self.place = place
        self._of_tensor_parallelism = unsharded_spec(parameter)
        self._shape = value.shape
        mesh = parameter.mesh_info.mesh
        below = dtensor.innermost_tensor(value)
        assert dtensor.is_dtensor(below)
        if below.device_mesh != parameter._spmd_mesh or getattr(
            parameter.mesh_info, "is_spmd_mesh", False
        ):
            raise TransformError(
                f"torchlayers: functional_call: {parameter._module_info.param_name!r} is a DTensor "
                f"on {below.device_mesh}, but fully_shard has sharded its module over {mesh}. Pass "
                "it on that mesh, or as a full plain tensor."
            )
        if hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather"):
            raise TransformError(
                "torchlayers: functional_call: a parameter with its own all-gather "
                f"({type(parameter._sharded_local_tensor).__name__}.fsdp_pre_all_gather) has no "
                "derivative here. Pass it as a full plain tensor."
            )
        placements = dtensor_ops.placements_of(value)
        if placements[mesh.ndim :] != self._inner() or not _can_be_joined(placements[: mesh.ndim]):
            value = value.redistribute(placements=parameter._sharding_spec.placements)
            placements = dtensor_ops.placements_of(value)
        groups = [str(mesh.get_group(dim).group_name) for dim in range(mesh.ndim)]
        sharded = [dim for dim in range(mesh.ndim) if placements[dim][0] == "S"]
        # The process group (and its size) over which it is sharded, and those that replicate it.
        self.gathered = (groups[sharded[0]], mesh.size(sharded[0])) if sharded else None
        self.shared = tuple(group for dim, group in enumerate(groups) if dim not in sharded)
        key = dtensor_ops.mesh_key(below.device_mesh)
        self.dim = dtensor_ops.shard_dim(placements[sharded[0]]) if sharded else 0
        local: Tensor = dtensor_ops.to_local(value, key, placements, placements)
        self.local = local.movedim(self.dim, 0) if sharded else local
        whole = self._shape if self._of_tensor_parallelism is None else parameter._orig_size
        self.rows = whole[self.dim] if sharded else 0

    def _inner(self) -> list[str]:
        spec = self._of_tensor_parallelism
        return [] if spec is None else dtensor_ops.encode_placements(spec.placements)

    def as_parameter(self, whole: Tensor) -> Any:
        """Returns the whole as the module expects it: as a DTensor under tensor parallelism."""
        if self.gathered is not None:
            whole = whole.movedim(0, self.dim)
        spec = self._of_tensor_parallelism
        if spec is None:
            return whole
        of_gradient = dtensor_ops.gradient_placements(self._inner())
        key = dtensor_ops.mesh_key(spec.mesh)
        return dtensor_ops.from_local(whole, key, self._inner(), of_gradient, [*self._shape])


def _can_be_joined(placements: list[str]) -> bool:
    return sum(placement[0] == "S" for placement in placements) <= 1 and "P" not in "".join(
        placements
    )


def _joined(shards: list[_Shard]) -> list[Tensor]:
    """Gathers shards of one layout; the sharded dimension comes first."""
    parts = [shard.local for shard in shards]
    for axis in shards[0].shared:  # gradients are summed there
        parts = _ops.pvary_each.default(parts, axis)
    if shards[0].gathered is None:
        return parts
    axis, size = shards[0].gathered
    # Collectives need parts of equal size.
    parts = [
        _padded(part, -(-shard.rows // size)) for part, shard in zip(parts, shards, strict=True)
    ]
    flat = torch.cat([part.reshape(-1) for part in parts])
    everybodys = _ops.all_gather.default(flat, 0, size, axis)
    return [
        of_all.reshape(size * part.shape[0], *part.shape[1:]).narrow(0, 0, shard.rows)
        for of_all, part, shard in zip(
            everybodys.split([part.numel() for part in parts], 1), parts, shards, strict=True
        )
    ]


def _padded(part: Tensor, rows: int) -> Tensor:
    missing = rows - part.shape[0]
    return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part
