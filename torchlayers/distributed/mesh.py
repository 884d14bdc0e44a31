"""Spread: runs a transform with its work spread over the ranks of a mesh dimension.

Every rank makes the call, with arguments that are the same on all ranks, or DTensors. An operator
shares each input among the ranks or splits it, and another combines the results. They are each
other's transposes, so gradients are those of the function on one machine.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.core.torch_private import dispatch_modes, functorch, is_wrapped, torch_c
from torchlayers.distributed import axes, consistency, dtensor, rank_rng
from torchlayers.distributed.axes import Axis
from torchlayers.distributed.captured_tensors import CapturedTensors

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_ops: Any = torch.ops.torchlayers

_KEPT = 64  # maximum number of cached DTensorSpecs

Out: TypeAlias = Literal["dtensor", "local", "full"]
Check: TypeAlias = Literal["first", "always", "never"]


def shard_range(total: int, size: int, rank: int) -> tuple[int, int]:
    """Returns the start and the size of a rank's part, as torch.chunk splits."""
    largest = -(-total // size)
    start = min(largest * rank, total)
    return start, min(largest, total - start)


class MeshExecution:
    """The ranks that a transform is spread over, and how its results are returned.

    Args:
        api: the transform's name in errors.
        mesh: a one-dimensional mesh.
        out: "dtensor", "local" or "full": the form of results.
        check: "first", "always" or "never": which calls compare the ranks.
    """

    def __init__(self, api: str, mesh: "DeviceMesh", out: str, check: str) -> None:
        for name, value, choices in (("out", out, Out), ("check", check, Check)):
            if value not in get_args(choices):
                raise TransformError(
                    f"torchlayers: {api}: {name} must be one of "
                    f"{', '.join(map(repr, get_args(choices)))}, got {value!r}."
                )
        if not axes.is_mesh(mesh):
            raise TransformError(
                f"torchlayers: {api}: mesh must be a DeviceMesh of one dimension, got {mesh!r}. "
                "Make one with torch.distributed.device_mesh.init_device_mesh; of several "
                "dimensions take one, mesh['dp']."
            )
        self.api = api
        self.mesh = mesh
        self.out = out
        self.axis = axes.of_mesh(mesh, api)
        self.ranks = self.axis.size
        self.rank = mesh.get_local_rank()
        self._specs: dict[Any, Any] = {}
        self._check = check
        self._checks = check != "never" and self.ranks > 1

    def part(self, total: int) -> tuple[int, int]:
        """Returns the start and the size of this rank's part of `total`."""
        return shard_range(total, self.ranks, self.rank)

    # ---- before the call

    def agree(self, facts: Callable[[], dict[str, str]]) -> bool:
        """Compares the ranks' facts if this call is to be checked, and returns whether it was.

        If it fails on one rank, all ranks raise an error.
        """
        if not self._checks:
            return False
        compare = functools.partial(
            consistency.check_ranks_agree, self.api, self.axis, self.mesh.device_type
        )
        try:
            facts_here = facts()
        except Exception as error:
            with contextlib.suppress(TransformError):  # its own error is the one to see here
                compare({consistency.FAILURE: str(error)})
            raise
        compare(facts_here)
        self._checks = self._check == "always"
        return True

    def captured(self, func: Callable[..., Any], *, are_alike: bool = True) -> CapturedTensors:
        """Returns the tensors captured by func whose gradients are to be summed over the ranks."""

        def is_to_sum(x: Tensor) -> bool:
            return are_alike and _may_need_operator(x) and not dtensor.is_dtensor_below(x)

        return CapturedTensors(func, is_to_sum)

    def facts(
        self, args: tuple[Any, ...], leaves: list[Any], captured: CapturedTensors
    ) -> dict[str, str]:
        """Returns the facts of the call that must match on all ranks: its name, and its tensors."""
        facts = {"the call": self.api, "out": self.out, "leaves": str(len(leaves))}
        facts["captured tensors"] = str([[*tensor.shape] for tensor in captured.tensors])
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                below = dtensor.innermost_tensor(leaf)
                placed = f", {below.placements}" if dtensor.is_dtensor(below) else ""
                facts[pytree.leaf_name("argument", args, i)] = (
                    f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{placed}"
                )
        return facts

    def named(self, name: str | None, total: int) -> Axis:
        """Returns the axis of all ranks' samples."""
        return Axis(name or "", total, self.axis.keys, self.part(total)[0])

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        randomness: str = "error",
        *,
        captures_alike: bool = True,
    ) -> Any:
        """Calls the function, which does this rank's part, on arguments shared by all ranks.

        With captures_alike false, the tensors that it captures are local to each rank.
        """
        leaves, spec = pytree.flatten(args)
        captured = self.captured(function, are_alike=captures_alike)
        is_checked = self.agree(lambda: self.facts(args, leaves, captured))
        since = sequence_number()
        local = self.samples(leaves, [None] * len(leaves), 0)
        shared = self.shared(captured.tensors)
        with self.inside(randomness, is_checked=is_checked):
            result = captured.replaced(shared)(*pytree.unflatten(local, spec))
        if is_checked:
            self.refuse_captured([*local, *shared], pytree.leaves(result), since)
        return result

    def samples(self, leaves: list[Any], dims: list[int | None], total: int) -> list[Any]:
        """Returns this rank's part of leaves with a batch dimension, and the others, shared."""
        local: list[Any] = [
            leaf if dim is None or not isinstance(leaf, Tensor) else self._shard(leaf, dim, total)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
        shared = [i for i, dim in enumerate(dims) if dim is None and isinstance(leaves[i], Tensor)]
        for i, leaf in zip(shared, self.shared([leaves[i] for i in shared]), strict=True):
            local[i] = leaf
        return local

    def shared(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Returns replicated tensors such that their gradients are summed over the ranks, all in
        one collective."""
        local = [
            self._whole(leaf) if dtensor.is_dtensor_below(leaf) else (leaf, True) for leaf in leaves
        ]
        followed = [
            i for i, (leaf, is_to_sum) in enumerate(local) if is_to_sum and _may_need_operator(leaf)
        ]
        result = [leaf for leaf, _ in local]
        if followed:
            varied = _ops.pvary_each.default([result[i] for i in followed], self.axis.keys[0])
            for i, leaf in zip(followed, varied, strict=True):
                result[i] = leaf
        return result

    def _shard(self, leaf: Tensor, dim: int, total: int) -> Tensor:
        if dtensor.is_dtensor_below(leaf):
            return self._placed(leaf, f"S{dim}", f"S{dim}")
        if _needs_operator(leaf):
            dealt: Tensor = _ops.own_part.default(leaf, dim, total, self.ranks, self.axis.keys[0])
            return dealt
        start, size = self.part(total)
        return leaf.narrow(dim, start, size)

    def _whole(self, leaf: Tensor) -> tuple[Tensor, bool]:
        """Returns the full local tensor of a DTensor, and whether its gradient is yet to be summed.

        That of a sharded DTensor is summed when it is reduced to the shards.
        """
        place, placements, _ = self._find_batch(leaf)
        is_replicated = placements[place] == "R"
        return self._placed(leaf, "R", "R" if is_replicated else "Psum"), is_replicated

    def _placed(self, leaf: Tensor, placement: str, cotangents: str) -> Tensor:
        placed: Any = importlib.import_module("torchlayers.distributed.dtensor_ops")
        place, placements, mesh = self._find_batch(leaf)
        wanted = [*placements]
        wanted[place] = placement
        if dtensor.is_dtensor(leaf) and not _needs_operator(leaf):
            local: Tensor = placed.local_tensor_of(leaf, placed.decode_placements(wanted))
            return local
        of_gradients = [*placements]
        of_gradients[place] = cotangents
        result: Tensor = placed.to_local(leaf, placed.mesh_key(mesh), wanted, of_gradients)
        return result

    def _find_batch(self, leaf: Tensor) -> tuple[int, list[str], "DeviceMesh"]:
        """Returns the index of our mesh among a DTensor's mesh dimensions, the DTensor's
        placements, and its mesh."""
        placed: Any = importlib.import_module("torchlayers.distributed.dtensor_ops")
        below = dtensor.innermost_tensor(leaf)
        assert dtensor.is_dtensor(below)
        mesh = below.device_mesh
        placements = placed.placements_of(leaf)
        if mesh is self.mesh or mesh == self.mesh:
            return 0, placements, mesh
        for place, name in enumerate(mesh.mesh_dim_names or ()):
            if mesh[name] == self.mesh:
                if any(placement != "R" for i, placement in enumerate(placements) if i != place):
                    raise TransformError(
                        f"torchlayers: {self.api}: a DTensor on {mesh} has placements "
                        f"{below.placements}, but it must be replicated along all mesh dimensions "
                        f"other than {name!r}. Redistribute it, or pass to_local() of it."
                    )
                return place, placements, mesh
        raise TransformError(
            f"torchlayers: {self.api}: got a DTensor on {mesh}, but the call is spread over "
            f"{self.mesh}, which is not one of that mesh's dimensions."
        )

    # ---- inside

    def inside(
        self, randomness: str, *, is_checked: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which a rank's part runs. In a checked call, collectives inside
        are checked too."""
        spread = axes.SpreadOver(self.axis)
        if not is_checked and randomness != "different":
            return spread
        stack = contextlib.ExitStack()
        stack.enter_context(spread)
        if is_checked:
            stack.enter_context(axes.checking())
        if randomness == "different":
            stack.enter_context(rank_rng.per_rank_draws(self.rank))
        return stack

    # ---- after it

    def gather(self, part: Any, dim: int | None, total: int) -> Any:
        """Combines a result of which each rank has its part along dim; None: all have the same."""
        if not isinstance(part, Tensor):
            return part
        if dim is None:
            return _ops.shared.default(part, self.ranks) if _needs_operator(part) else part
        dim %= part.dim()
        if self.out == "local":
            return part
        if self.out == "full":
            return _ops.joined_parts.default(part, dim, total, self.ranks, self.axis.keys[0])
        shape = *part.shape[:dim], total, *part.shape[dim + 1 :]
        if not _needs_operator(part):
            return dtensor.of_local(part, self._spec(dim, shape, part.dtype))
        placed: Any = importlib.import_module("torchlayers.distributed.dtensor_ops")
        where = [f"S{dim}"]
        return placed.from_local(part, placed.mesh_key(self.mesh), where, where, [*shape])

    def _spec(self, dim: int, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """Returns the spec of a DTensor sharded along dim; cached, as it is slow to make."""
        key = dim, shape, dtype
        if key not in self._specs:
            from torch.distributed.tensor import Shard

            if len(self._specs) >= _KEPT:
                self._specs.clear()
            self._specs[key] = dtensor.spec_of(self.mesh, [Shard(dim)], shape, dtype)
        return self._specs[key]

    def summed(self, parts: list[Tensor]) -> list[Tensor]:
        """Sums the tensors over ranks, as values that all ranks share, in one collective."""
        sums: list[Tensor] = _ops.psum_invariant_each.default(parts, self.axis.keys[0])
        return sums

    def refuse_captured(self, inputs: list[Any], results: list[Any], since: int) -> None:
        """Raises if a result depends on a tensor from outside that is not among the inputs.

        Its gradient would not be summed over the ranks. `since` is autograd's sequence number at
        the start of the call; captured tensors that were found are among the inputs.
        """
        if self.out != "local" and _reaches_outside(inputs, results, since):
            raise TransformError(
                f"torchlayers: {self.api}: the function reads a tensor that is differentiated "
                "outside, is not an argument, and was not found among its captured variables: it "
                "may be an attribute of an object, or a variable that the function assigns to. Its "
                "gradient would cover this rank's part only. Pass it as an argument (with in_dim "
                "None), whose gradient is summed over the ranks."
            )


def _needs_operator(tensor: Tensor) -> bool:
    """Whether a layer or plain autograd may track the tensor, so that operators must be used rather
    than its values alone."""
    return functorch.maybe_current_level() is not None or _may_need_operator(tensor)


def _may_need_operator(tensor: Tensor) -> bool:
    """Whether the tensor is tracked by autograd or wrapped by a layer."""
    return tensor.requires_grad or is_wrapped(tensor)


def sequence_number() -> int:
    """Returns autograd's sequence number: nodes created from now on have this or a larger one."""
    with (
        torch.DisableTorchFunction(),
        torch_c._DisableFuncTorch(),
        dispatch_modes._disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        node: Any = torch.zeros((), requires_grad=True).exp().grad_fn
    return int(node._sequence_nr()) + 1


def _reaches_outside(inputs: list[Any], results: list[Any], since: int) -> bool:
    ends = {node for tensor in inputs for node in _nodes(tensor)}
    waiting = [node for result in results for node in _nodes(result)]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node in ends:
            continue
        if node.name().endswith("AccumulateGrad") or node._sequence_nr() < since:
            return True
        following = [following for following, _ in node.next_functions if following is not None]
        waiting += [reached for reached in following if reached not in seen]
        seen.update(following)
    return False


def _nodes(tensor: Any) -> Iterator[Any]:
    """Yields the tensor's grad_fn at each of its levels."""
    while isinstance(tensor, Tensor):
        if tensor.grad_fn is not None:
            yield tensor.grad_fn
        if not is_wrapped(tensor):
            return
        tensor = functorch.get_unwrapped(tensor)
