"""Policies: which results :func:`torchlayers.checkpoint` saves for the backward.

A policy is a function. It is called with each operator that reaches the bottom of the stack and the
operator's arguments, and returns whether the result is saved: True or False, or a :class:`Choice`.
For a value named by :func:`torchlayers.checkpoint_name` it is called with that function in place of
the operator, the value and the name. There, False leaves the decision made for the operator that
computed the value, and Choice.RECOMPUTE revokes it. The names here are those of
``jax.checkpoint_policies``.
"""

import enum
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.annotations import T
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import TorchDispatchMode, dispatch_modes

__all__ = [
    "Choice",
    "Policy",
    "checkpoint_name",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "offload_dot_with_no_batch_dims",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]


class Choice(enum.Enum):
    """How an operator's result is made available to the backward."""

    RECOMPUTE = "recompute"
    SAVE = "save"
    OFFLOAD = "offload"  # saved in host memory


Policy: TypeAlias = Callable[..., bool | Choice]

_MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.mv.default,
    aten.addmv.default,
    aten.dot.default,
    aten.vdot.default,
}
_PRODUCTS = _MATRIX_PRODUCTS | {
    aten.bmm.default,
    aten.baddbmm.default,
    aten.matmul.default,
    aten.linear.default,
}


class NamedValueMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose `name` method is called for each value that is named while it is active."""

    def name(self, value: Tensor, name: str) -> None:
        raise NotImplementedError


def checkpoint_name(value: T, name: str) -> T:
    """Names a value inside a checkpointed function, so that a policy can select it.

    Args:
        value: a tensor or a pytree of tensors.
        name: the name that is passed to policies.
    Returns:
        The value.
    Example:
        >>> def layer(x):
        ...     return checkpoint_name(x.sin(), "hidden").exp().sum()
        >>> keeps = torchlayers.checkpoint_policies.save_only_these_names("hidden")
        >>> torchlayers.grad(torchlayers.checkpoint(layer, policy=keeps))(torch.zeros(2))
        tensor([1., 1.])

    Source: jax.ad_checkpoint.checkpoint_name.
    """
    for mode in dispatch_modes._get_current_dispatch_mode_stack():
        if isinstance(mode, NamedValueMode):
            for leaf in pytree.leaves(value):
                if isinstance(leaf, Tensor):
                    mode.name(leaf, name)
    return value


def everything_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Saves all that the backward needs, as if nothing were checkpointed."""
    return True


def nothing_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Saves the arguments alone, and recomputes everything."""
    return False


def dots_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Saves matrix products, including batched ones."""
    return op in _PRODUCTS


def dots_with_no_batch_dims_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Saves products of matrices and vectors, as of activations and weights, but no batched ones.

    Under vmap a product may become a batched one.
    """
    return op in _MATRIX_PRODUCTS


def offload_dot_with_no_batch_dims(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
    """Saves products of matrices and vectors, but no batched ones, in host memory."""
    return Choice.OFFLOAD if op in _MATRIX_PRODUCTS else False


def save_only_these_names(*names: str) -> Policy:
    """Saves values with one of these names (:func:`torchlayers.checkpoint_name`)."""
    return _by_name(lambda name: name in names)


def save_any_names_but_these(*names: str) -> Policy:
    """Saves all named values except those with one of these names."""
    return _by_name(lambda name: name not in names)


def save_anything_except_these_names(*names: str) -> Policy:
    """Saves every result except those with one of these names."""

    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        is_named = op is checkpoint_name and args[1] in names
        return Choice.RECOMPUTE if is_named else True

    return policy


def save_and_offload_only_these_names(
    *, names_which_can_be_saved: list[str], names_which_can_be_offloaded: list[str]
) -> Policy:
    """Saves values with one of the first names, and in host memory those with one of the second."""

    def policy(name: str) -> bool | Choice:
        if name in names_which_can_be_saved:
            return True
        return Choice.OFFLOAD if name in names_which_can_be_offloaded else False

    return _by_name(policy)


def save_from_both_policies(one: Policy, other: Policy) -> Policy:
    """Saves what either policy saves; where both do, the first decides how."""

    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        answer = one(op, *args, **kwargs)
        keeps = choice(answer) is not Choice.RECOMPUTE
        return answer if keeps else other(op, *args, **kwargs)

    return policy


def choice(answer: bool | Choice) -> Choice:
    """Converts a policy's answer to a Choice."""
    return answer if isinstance(answer, Choice) else Choice.SAVE if answer else Choice.RECOMPUTE


def _by_name(of_name: Callable[[str], bool | Choice]) -> Policy:
    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        return of_name(args[1]) if op is checkpoint_name else False

    return policy
