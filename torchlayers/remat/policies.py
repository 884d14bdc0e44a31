"""What :func:`torchlayers.checkpoint` keeps for the backward, by operator, arguments and name.

A policy is a function. It is asked about each operator that reaches the bottom of the stack, with
the operator and its arguments, and answers whether the result is kept: True or False, or a
:class:`Choice`. About a value that :func:`torchlayers.checkpoint_name` has named it is asked with
that function in the operator's place, the value and the name: then False leaves it to what the
policy has said of the operator that made the value, and Choice.RECOMPUTE takes that back. The names
here are those of ``jax.checkpoint_policies``.
"""

import enum
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from torchlayers.core import pytree

_torch: Any = torch  # what it keeps for its own use has no types

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
    """What becomes of an operator's result until the backward."""

    RECOMPUTE = "recompute"
    SAVE = "save"
    OFFLOAD = "offload"  # saved in the host's memory


Policy: TypeAlias = Callable[..., bool | Choice]

_aten = torch.ops.aten
_MATRIX_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.mv.default,
    _aten.addmv.default,
    _aten.dot.default,
    _aten.vdot.default,
}
_PRODUCTS = _MATRIX_PRODUCTS | {
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.matmul.default,
    _aten.linear.default,
}


class TakesNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is told of the values that are named while it is on."""

    def name(self, value: Tensor, name: str) -> None:
        raise NotImplementedError


def checkpoint_name(value: Any, name: str) -> Any:
    """Names a value inside a function that is checkpointed, for a policy to ask for.

    Args:
        value: a tensor or a pytree of tensors.
        name: what policies know it by.
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
    if _torch._C._len_torch_dispatch_stack() > 0:
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, TakesNames):
                for leaf in pytree.leaves(value):
                    if isinstance(leaf, Tensor):
                        mode.name(leaf, name)
    return value


def everything_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Keeps all that the backward needs, as if nothing were checkpointed."""
    return True


def nothing_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Keeps the arguments alone, and computes everything again."""
    return False


def dots_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Keeps matrix products, batched ones too."""
    return op in _PRODUCTS


def dots_with_no_batch_dims_saveable(op: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Keeps products of matrices and vectors, as of activations and weights, but no batched ones.

    Under vmap a product may become a batched one.
    """
    return op in _MATRIX_PRODUCTS


def offload_dot_with_no_batch_dims(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
    """Keeps products of matrices and vectors in the host's memory."""
    return Choice.OFFLOAD if op in _MATRIX_PRODUCTS else False


def save_only_these_names(*names: str) -> Policy:
    """Keeps what has one of these names (:func:`torchlayers.checkpoint_name`)."""
    return _by_name(lambda name: name in names)


def save_any_names_but_these(*names: str) -> Policy:
    """Keeps what has a name, if it is none of these."""
    return _by_name(lambda name: name not in names)


def save_anything_except_these_names(*names: str) -> Policy:
    """Keeps every result but those with one of these names."""

    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        is_named = op is checkpoint_name and args[1] in names
        return Choice.RECOMPUTE if is_named else True

    return policy


def save_and_offload_only_these_names(
    *, names_which_can_be_saved: list[str], names_which_can_be_offloaded: list[str]
) -> Policy:
    """Keeps what has one of some names, and in the host's memory what has one of others."""

    def policy(name: str) -> bool | Choice:
        if name in names_which_can_be_saved:
            return True
        return Choice.OFFLOAD if name in names_which_can_be_offloaded else False

    return _by_name(policy)


def save_from_both_policies(one: Policy, other: Policy) -> Policy:
    """Keeps what either policy keeps, and as the first does where both do."""

    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        answer = one(op, *args, **kwargs)
        keeps = choice(answer) is not Choice.RECOMPUTE
        return answer if keeps else other(op, *args, **kwargs)

    return policy


def choice(answer: bool | Choice) -> Choice:
    """A policy's answer, as a choice."""
    return answer if isinstance(answer, Choice) else Choice.SAVE if answer else Choice.RECOMPUTE


def _by_name(of_name: Callable[[str], bool | Choice]) -> Policy:
    def policy(op: Any, /, *args: Any, **kwargs: Any) -> bool | Choice:
        return of_name(args[1]) if op is checkpoint_name else False

    return policy
