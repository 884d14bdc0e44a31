"""Control flow on values that stand for others as well: every path that a run may take.

The result depends on all that it would depend on by any path (core/varying_values.py). Its values
are those of one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.checks import Carry, check_alike
from torchlayers.core import pytree, varying_values
from torchlayers.core.layer_stack import current_stack

# Trips after which a loop's results are taken to depend on all of its carry.
_TRIPS = 16


def choose(
    api: str,
    which: Tensor,
    branches: Sequence[tuple[str, Callable[..., Any]]],
    operands: Sequence[Any],
) -> Any:
    """Runs each branch, and selects between their results.

    Args:
        api: the caller's name in errors.
        which: the number of the branch to take.
        branches: pairs of a name for errors and a function.
    """
    name, branch = branches[0]
    result = branch(*operands)
    leaves, spec = pytree.flatten(result)
    for i, (other_name, other) in enumerate(branches[1:], start=1):
        other_result = other(*operands)
        check_alike(api, result, name, other_result, other_name)
        pairs = zip(pytree.leaves(other_result), leaves, strict=True)
        leaves = [_select(which == i, *pair) for pair in pairs]
    return pytree.unflatten(leaves, spec)


def repeat(body_fn: Callable[[Any], Any], checks: Carry, init: Any, pred: Tensor) -> Any:
    """The carry of a loop after any number of trips.

    Trips start from what the carry depends on after those before, until that no longer grows. They
    always run on the initial values, so that the body sees none outside of its domain.
    """
    never = pred & ~pred
    start = [_as_tensor(leaf, pred) for leaf in pytree.leaves(init)]

    def trip(leaves: list[Any]) -> list[Any]:
        new = checks.leaves(body_fn(pytree.unflatten(leaves, checks.spec)))
        either = [_select(pred, *pair) for pair in zip(new, leaves, strict=True)]
        return [_select(never, *pair) for pair in zip(either, start, strict=True)]

    # A derivative of the loop may grow for longer than the carry.
    kinds = {layer.kind for layer in current_stack()}
    is_differentiated = bool(kinds & {"grad", "jvp"})
    leaves = start
    for _ in range(2 if is_differentiated else _TRIPS):
        before = [*map(_dependence, leaves)]
        leaves = trip(leaves)
        if not is_differentiated and [*map(_dependence, leaves)] == before:
            return pytree.unflatten(leaves, checks.spec)
    varying_values.note_dense(pred, checks.api)
    for _ in range(2):
        leaves = trip(_each_by_all(leaves, never))
    return pytree.unflatten(_each_by_all(leaves, never), checks.spec)


def _each_by_all(leaves: list[Any], never: Tensor) -> list[Any]:
    """The same values, of which each element depends on all elements."""
    real = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    if not real:
        return leaves
    total = sum((x.sum().to(real[0].dtype) for x in real), real[0].new_zeros(()))
    return [
        torch.where(never, total.to(x.dtype), x)
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for x in leaves
    ]


def _as_tensor(leaf: Any, like: Tensor) -> Any:
    is_number = isinstance(leaf, (bool, int, float, complex))
    return torch.as_tensor(leaf, device=like.device) if is_number else leaf


def _select(pred: Tensor, one: Any, other: Any) -> Any:
    if one is None or (not isinstance(one, Tensor) and not isinstance(other, Tensor)):
        return one
    return torch.where(pred, one, other)


def _dependence(leaf: Any) -> Any:
    return varying_values.dependence(leaf) if isinstance(leaf, Tensor) else leaf
