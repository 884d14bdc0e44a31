"""checkpoint: recomputes the tensors that a function saves for its gradient when they are needed.

While the function runs, each level that records it passes the tensors that it saves to a pair of
saved-tensor hooks, which store a placeholder for each and no tensor. When the reverse pass of a
level unpacks the first of them, the function runs again, on the layer stack that it first ran on
(NOTE [Where a hook runs] in csrc/core/saved_stack.h), and the level's placeholders are filled.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import CallError, RecomputationError, location
from torchlayers.core.layer_stack import transformed
from torchlayers.core.tensors.tensor_versions import describe_write
from torchlayers.core.torch_private import dual_level, saved_hooks
from torchlayers.fx.recomputation import is_recomputation_allowed
from torchlayers.remat.ambient_state import AmbientState
from torchlayers.remat.deferred import deferred
from torchlayers.remat.policies import Policy, everything_saveable, nothing_saveable
from torchlayers.remat.saved_by_policy import ReplayMode, SavingMode

_torch: Any = torch  # its private names have no type stubs
forward_ad: Any = torch.autograd.forward_ad  # which is not typed

__all__ = ["checkpoint"]


def checkpoint(
    func: Callable[P, R], policy: Policy | None = None, *args: NoReturn, **options: NoReturn
) -> Callable[P, R]:
    """Wraps a function so that its saved tensors are recomputed in the backward.

    Checkpoints may be nested, and used inside and around any composition of transforms. The
    recomputation draws the same random numbers, in the same autocast mode. func has to compute the
    same results from the same arguments each time, and may read captured tensors.

    Args:
        func: takes and returns tensors and pytrees of tensors.
        policy: selects the operators whose results are saved nevertheless
            (:mod:`torchlayers.checkpoint_policies`); None saves the arguments alone.
        args, options: not accepted. torch's checkpoint takes func's arguments there; here they
            raise an error.
    Returns:
        A function with func's arguments and results.
    Raises:
        CallError: it was called like torch.utils.checkpoint.checkpoint.
        RecomputationError: func behaved differently when it was recomputed, one of its arguments
            has been written to in between, or func writes to what its gradient needs.
    Example:
        >>> layer = checkpoint(lambda x: x.sin().exp())
        >>> torchlayers.grad(lambda x: layer(layer(x)).sum())(torch.zeros(2))
        tensor([1.2534, 1.2534])

    Source: jax.checkpoint; Griewank and Walther, "Evaluating Derivatives" (2008), chapter 12.
    """

    if args or options or not (policy is None or callable(policy)):
        _refuse_call(func, (policy, *args), options)
    if tracing_state.is_tracing():  # torch.func's transforms do not allow hooks there
        return func

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if (
            tracing_state.is_tracing()
            or policy is everything_saveable
            or not torch.is_grad_enabled()
            or not is_recomputation_allowed()
        ):
            return func(*args, **kwargs)
        return _CheckpointedCall(func, policy, args, kwargs).run()  # type: ignore[no-any-return]

    return transformed(func, wrapper)


def _refuse_call(
    func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> NoReturn:
    what = [type(value).__name__ for value in args if value is not None]
    what += [f"{name}={value!r}" for name, value in options.items()]
    name = pytree.name_of(func)
    raise CallError(
        f"torchlayers: checkpoint: got {', '.join(what)} in addition to the function. It takes a "
        "function and an optional policy, and returns a function: write "
        f"torchlayers.checkpoint({name})(x) instead of torch's checkpoint({name}, x).{location()}"
    )


class StopRecomputation(BaseException):
    """Ends a recomputation early, once all needed tensors are there. A BaseException, so that an
    `except Exception` in the function does not catch it."""


class _CheckpointedCall:
    """One call of a checkpointed function, whose placeholders are in csrc/python/hooks."""

    def __init__(
        self,
        func: Callable[..., Any],
        policy: Policy | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.func = func
        self.leaves, self.spec = pytree.flatten((args, kwargs))
        self.func_again = deferred(func, *self.leaves)
        self.surroundings = AmbientState()
        self.keeping = (
            SavingMode(policy) if policy is not None and policy is not nothing_saveable else None
        )
        self.inputs = _SavedInputs(self.leaves)

    def run(self) -> Any:
        args, kwargs = pytree.unflatten(self.leaves, self.spec)
        del self.leaves  # `inputs` may hold them in packed form
        with _C.Region(self).on(), self.keeping or nullcontext():
            result = self.func(*args, **kwargs)
        self.surroundings.forget_unused()
        return result

    def recompute(self, filling: _C.Filling) -> None:
        giving = nullcontext() if self.keeping is None else ReplayMode(self.keeping.results)
        try:
            with self.inputs.dual_level(), self.surroundings.restored(), torch.enable_grad():
                args, kwargs = pytree.unflatten(self.inputs.read_values(self.func), self.spec)
                with filling.on(), giving:
                    self.func_again(*args, **kwargs)
        except (StopRecomputation, RuntimeError):  # TorchScript makes it an error of its own
            if not filling.has_stopped:
                raise
            return
        if filling.is_complete:  # NOTE [Saved before it is drawn]
            return
        raise RecomputationError(
            f"torchlayers: checkpoint: {pytree.name_of(self.func)} saved {filling.saved_at_first} "
            f"tensors for its gradient, but {filling.saved_again} when it was recomputed. It must "
            "behave the same each time."
        )

    def refuse_other(self, at_first: Any, again: Any) -> None:
        raise RecomputationError(
            f"torchlayers: checkpoint: {pytree.name_of(self.func)} saved a tensor "
            f"{_describe(at_first)} for its gradient, but {_describe(again)} when it was "
            "recomputed. It must behave the same each time."
        )

    def refuse_modified(self, saved: int, current: int) -> None:
        raise RecomputationError(
            f"torchlayers: checkpoint: a tensor that {pytree.name_of(self.func)} needs "
            f"{describe_write(saved, current)}"
        )


class AdoptedHooks(saved_tensors_hooks):
    """Saved-tensor hooks that are bound to the current layer stack when the block is entered."""

    def __enter__(self) -> None:
        super().__enter__()
        _C.adopt_saved_hooks()


def without_saved_tensor_hooks() -> AbstractContextManager[Any]:
    """Hides the tensors that are saved inside from the hooks around."""
    if saved_hooks._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return saved_tensors_hooks(_same, _same)


def _same(x: Tensor) -> Tensor:
    return x


class _SavedInputs:
    """Stores the arguments until recomputation; as the hooks around the call pack them, if any.

    Tangents of a user's forward_ad.dual_level are stored beside them: they end with the level.
    """

    def __init__(self, leaves: list[Any]) -> None:
        is_packed = saved_hooks._top_saved_tensors_default_hooks(True) is not None
        has_duals = _C.top() is None and _C.any_dual_level_of_others()
        self.tangents = [_tangent(leaf) if has_duals else None for leaf in leaves]
        self.versions = [leaf._version if _has_version(leaf) else 0 for leaf in leaves]
        if not is_packed:
            self.leaves = leaves
            return
        self.leaves = [
            _C.SavedByHooks(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves
        ]

    def read_values(self, func: Callable[..., Any]) -> list[Any]:
        for leaf, version in zip(self.leaves, self.versions, strict=True):
            if _has_version(leaf) and leaf._version != version:
                raise RecomputationError(
                    f"torchlayers: checkpoint: an argument of {pytree.name_of(func)} has since "
                    "been modified in place, but is needed for its gradient. Use the out-of-place "
                    "operator, or write to a clone."
                )
        saved = _C.SavedByHooks
        leaves = [leaf.unpack() if isinstance(leaf, saved) else leaf for leaf in self.leaves]
        return [
            leaf
            if tangent is None or _tangent(leaf) is not None
            else forward_ad.make_dual(leaf, tangent)
            for leaf, tangent in zip(leaves, self.tangents, strict=True)
        ]

    def dual_level(self) -> AbstractContextManager[Any]:
        """Enters a dual level if the arguments had tangents, of one that has ended."""
        has_ended = dual_level() < 0
        is_needed = has_ended and any(tangent is not None for tangent in self.tangents)
        return forward_ad.dual_level() if is_needed else nullcontext()


def _tangent(leaf: Any) -> Tensor | None:
    return forward_ad.unpack_dual(leaf).tangent if isinstance(leaf, Tensor) else None


def _has_version(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.is_inference()


def _describe(looks: Any) -> str:
    shape, dtype, device = looks
    return f"of shape {tuple(shape)} and {dtype} on {device}"
