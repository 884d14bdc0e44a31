"""Checks on control flow functions: predicates are one bool, carries and results match."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import StructureError, TransformError, location

_NUMBERS = (bool, int, float, complex)


def check_predicate(api: str, what: str, pred: Any) -> None:
    """Raises an error unless pred is a bool, or a tensor that holds one."""
    if isinstance(pred, bool):
        return
    if not isinstance(pred, Tensor):
        got = f"{type(pred).__name__} ({pred!r})"
    elif pred.dtype != torch.bool:
        got = f"a tensor of dtype {pred.dtype}"
    elif pred.numel() != 1:
        got = f"a tensor of shape {tuple(pred.shape)}"
    else:
        return
    advice = "Compare (x > 0), or take any() or all()." if isinstance(pred, Tensor) else ""
    raise TransformError(
        f"torchlayers: {api}: {what} must be a bool or a tensor that holds one bool, got {got}. "
        f"{advice}".rstrip()
    )


def check_choice(api: str, name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise TransformError(
            f"torchlayers: {api}: {name} must be {' or '.join(map(repr, choices))}, got {value!r}."
        )


class Carry:
    """The structure, shapes and dtypes that every carry of a loop must have.

    Args:
        api: the loop's name in error messages.
        carry: the initial carry.
        body: the name in error messages of the function that returns the next carry.
    """

    def __init__(self, api: str, carry: Any, body: str) -> None:
        self.api = api
        self.body = body
        leaves, self.spec = pytree.flatten(carry)
        self.kinds = [_kind(leaf) for leaf in leaves]
        # Fast path for the most common carry, a single tensor.
        self.dtype: Any
        self.shape: Any
        self.dtype, self.shape = self.kinds[0] if type(carry) is Tensor else (None, None)

    def checked(self, carry: Any) -> Any:
        """Checks the next carry and returns it unchanged."""
        if type(carry) is not Tensor or carry.dtype is not self.dtype or carry.shape != self.shape:
            self.leaves(carry)
        return carry

    def leaves(self, carry: Any) -> list[Any]:
        """Checks the next carry and returns its leaves.

        Raises:
            StructureError: it differs from the initial carry in structure, shape or dtype.
        """
        leaves, spec = pytree.flatten(carry)
        if spec is not self.spec and spec != self.spec:
            raise StructureError(
                f"torchlayers: {self.api}: {self.body} must return a carry of the structure of "
                f"init, {pytree.describe(self.spec)}, but returned {pytree.describe(spec)} (* is a "
                f"leaf).{_difference(self.spec, spec)}{location()}"
            )
        for i, leaf in enumerate(leaves):
            kind = self.kinds[i]
            if (
                type(leaf) is Tensor
                and type(kind) is tuple
                and leaf.dtype is kind[0]
                and leaf.shape == kind[1]
            ):
                continue
            if not _fits(_kind(leaf), kind):
                raise StructureError(
                    f"torchlayers: {self.api}: {self.body} must keep the shape and dtype of each "
                    f"leaf of the carry, but {_name(carry, i, 'the carry')} was {_described(kind)} "
                    f"and is now {_described(_kind(leaf))}.{_advice(kind, _kind(leaf))}{location()}"
                )
        return leaves


def check_alike(api: str, first: Any, name: str, second: Any, other: str) -> None:
    """Raises StructureError unless two branches returned the same structure, shapes and dtypes.

    ``name`` and ``other`` name the branches in the error; the values are those of one sample.
    """
    ours, spec = pytree.flatten(first)
    other_leaves, other_spec = pytree.flatten(second)
    if spec != other_spec:
        raise StructureError(
            f"torchlayers: {api}: the branches must return the same structure: {name} returned "
            f"{pytree.describe(spec)}, {other} {pytree.describe(other_spec)} (* is a leaf)."
        )
    for i, (one, two) in enumerate(zip(ours, other_leaves, strict=True)):
        if not _fits(_kind(one), _kind(two)):
            raise StructureError(
                f"torchlayers: {api}: the branches must return the same shapes and dtypes: "
                f"{_name(first, i, 'the result')} is {_described(_kind(one))} in {name}, but "
                f"{_described(_kind(two))} in {other}."
            )


def _kind(leaf: Any) -> Any:
    """The dtype and shape of a tensor; the type of any other leaf."""
    return (leaf.dtype, leaf.shape) if isinstance(leaf, Tensor) else type(leaf)


def _fits(kind: Any, other: Any) -> bool:
    if isinstance(kind, tuple) and isinstance(other, tuple):
        return bool(kind == other)
    if isinstance(kind, tuple) or isinstance(other, tuple):
        tensor, plain = (kind, other) if isinstance(kind, tuple) else (other, kind)
        return plain in _NUMBERS and tensor[1] == ()
    return bool(kind is other or (kind in _NUMBERS and other in _NUMBERS))


def _described(kind: Any) -> str:
    if not isinstance(kind, tuple):
        return f"of type {kind.__name__}"
    return f"of shape {tuple(kind[1])} and dtype {kind[0]}"


def _advice(was: Any, became: Any) -> str:
    if isinstance(was, tuple) and isinstance(became, tuple) and was[0] != became[0]:
        return f" Start with {became[0]}, or convert what the function returns."
    return ""


def _name(values: Any, index: int, whole: str) -> str:
    path = _paths(values)[index]
    return f"{whole}'s {path}" if path else whole


def _paths(values: Any) -> list[str]:
    try:
        return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(values)[0]]
    except ValueError:  # a node class registered without key paths
        return [f"leaf {i}" for i in range(pytree.flatten(values)[1].num_leaves)]


def _difference(was: pytree.TreeSpec, became: pytree.TreeSpec) -> str:
    """Names the first leaf only in ``was`` and the first only in ``became``, for an error."""
    before, after = (_paths(pytree.unflatten(range(s.num_leaves), s)) for s in (was, became))
    gone = [path for path in before if path not in after and path][:1]
    new = [path for path in after if path not in before and path][:1]
    changes = [f"{path} is gone" for path in gone] + [f"{path} is new" for path in new]
    return f" The carry's {', and its '.join(changes)}." if changes else ""
