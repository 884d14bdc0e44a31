"""Splits pytrees of tensors along their first dimension, and stacks or concatenates them again."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DimensionError, NotTensorError, StructureError, TransformError


class Slices:
    """The slices of a pytree of tensors along their first dimension.

    Args:
        api: the function's name in error messages.
        xs: the pytree; None for slices that are None.
        length: the number of slices, if it was given.
    """

    def __init__(self, api: str, xs: Any, length: int | None) -> None:
        self.api = api
        self.leaves: list[Any] = []
        self.spec = None
        if length is not None and (not isinstance(length, int | torch.SymInt) or length < 0):
            raise TransformError(
                f"torchlayers: {api}: length must not be negative, got {length!r}."
            )
        if xs is not None:
            self.leaves, self.spec = pytree.flatten(xs)
        for i, leaf in enumerate(self.leaves):
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: {api}: {_name(xs, i)} must be a tensor, got "
                    f"{type(leaf).__name__}."
                )
            if leaf.dim() == 0:
                raise DimensionError(
                    f"torchlayers: {api}: {_name(xs, i)} has no dimensions, so it can't be sliced "
                    "along its first."
                )
        lengths = [leaf.size(0) for leaf in self.leaves]
        if not lengths:
            if length is None:
                raise TransformError(
                    f"torchlayers: {api}: xs holds no tensors, so length must be given."
                )
        elif (
            other := next((i for i, n in enumerate(lengths) if n != lengths[0]), None)
        ) is not None:
            raise DimensionError(
                f"torchlayers: {api}: xs must have one length, but {_name(xs, 0)} has "
                f"{lengths[0]} and {_name(xs, other)} has {lengths[other]}."
            )
        elif length not in (None, lengths[0]):
            raise DimensionError(
                f"torchlayers: {api}: length is {length}, but xs have length {lengths[0]}."
            )
        self.length: int = lengths[0] if lengths else (length or 0)

    def numbered(self, first: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        """The slices in order, or from the last to the first, numbered from ``first``."""
        numbers = range(first, first + self.length)
        if self.spec is None:  # without a list of them, which may be long
            return zip(reversed(numbers) if reverse else numbers, itertools.repeat(None))
        numbered = list(zip(numbers, self.all(), strict=True))
        return reversed(numbered) if reverse else iter(numbered)

    def all(self) -> list[Any]:
        if self.spec is None:
            return [None] * self.length
        # One operator for all slices; its derivative is one operator too.
        columns = [leaf.unbind(0) for leaf in self.leaves]
        if len(columns) == 1 and self.spec.is_leaf():
            return list(columns[0])
        rows = zip(*columns, strict=True) if columns else [()] * self.length
        return [pytree.unflatten(list(row), self.spec) for row in rows]

    def whole(self) -> Any:
        return None if self.spec is None else pytree.unflatten(self.leaves, self.spec)

    def parts(self, lengths: list[int]) -> list["Slices"]:
        """Splits the slices into consecutive parts of these lengths."""
        if self.spec is None or not self.leaves:
            return [Slices(self.api, self.whole(), length) for length in lengths]
        rows = zip(*(leaf.split(lengths) for leaf in self.leaves), strict=True)
        return [Slices(self.api, pytree.unflatten(list(row), self.spec), None) for row in rows]

    def in_rows(self, count: int, size: int) -> "Slices":
        """Groups all slices into ``count`` rows of ``size`` slices each."""
        rows = [leaf.reshape(count, size, *leaf.shape[1:]) for leaf in self.leaves]
        return Slices(self.api, self.unflatten(rows), count)

    def unflatten(self, leaves: Sequence[Tensor]) -> Any:
        """A slice with these leaves."""
        return None if self.spec is None else pytree.unflatten([*leaves], self.spec)

    def of_zeros(self) -> Any:
        return self.unflatten([leaf.new_zeros(leaf.shape[1:]) for leaf in self.leaves])


def stack_results(api: str, ys: list[Any]) -> Any:
    """Stacks one or more results in a new first dimension.

    Raises:
        StructureError: the results have different structures.
        NotTensorError: a leaf is neither a tensor nor None.
    """
    if isinstance(ys[0], Tensor):
        columns, spec = [ys], None
    else:
        leaves, spec = pytree.flatten(ys[0])
        columns = [[leaf] for leaf in leaves]
        for y in ys[1:]:
            leaves, its_spec = pytree.flatten(y)
            if its_spec != spec:
                raise StructureError(
                    f"torchlayers: {api}: the function must return the same structure for each "
                    f"slice, and returned {pytree.describe(spec)} and {pytree.describe(its_spec)} "
                    "(* is a leaf)."
                )
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
    results = [_stacked(api, column) for column in columns]
    return results[0] if spec is None else pytree.unflatten(results, spec)


def concatenate_results(api: str, parts: list[Any]) -> Any:
    """Concatenates the stacked results of one or more parts.

    Raises:
        StructureError: the parts differ in structure or in the shape of a slice.
    """
    leaves, spec = pytree.flatten(parts[0])
    columns = [[leaf] for leaf in leaves]
    for part in parts[1:]:
        leaves, its_spec = pytree.flatten(part)
        if its_spec != spec or [_shape(leaf) for leaf in leaves] != [_shape(c[0]) for c in columns]:
            raise StructureError(
                f"torchlayers: {api}: the function must return the same structure and shapes for "
                "each slice."
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    whole = [column[0] if column[0] is None else torch.cat(column) for column in columns]
    return pytree.unflatten(whole, spec)


def _shape(leaf: Any) -> Any:
    """The shape of one slice of the leaf; None if the leaf is not a tensor."""
    return leaf.shape[1:] if isinstance(leaf, Tensor) else None


def _stacked(api: str, column: list[Any]) -> Any:
    if all(leaf is None for leaf in column):
        return None
    shape = column[0].shape if isinstance(column[0], Tensor) else None
    for leaf in column:
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: {api}: the function must return only tensors, or None, for a slice, "
                f"got {type(leaf).__name__}."
            )
        if leaf.shape != shape:
            raise StructureError(
                f"torchlayers: {api}: the function must return the same shape for each slice, and "
                f"returned {tuple(column[0].shape)} and {tuple(leaf.shape)}."
            )
    return torch.stack(column)


def _name(xs: Any, i: int) -> str:
    name = pytree.leaf_name("xs", (xs,), i)
    return "xs" if name == "xs 0" else name.replace("xs 0, ", "xs")
