"""at: indexed reads and writes that return values, and say what an index out of bounds means."""

import math
import operator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchlayers.core.errors import CallError, DimensionError

__all__ = ["At", "at"]

Read = Literal["fill", "clip"]
Write = Literal["drop", "clip"]


class At:
    """A tensor to index: ``at(x)[index]``."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> "Elements":
        return Elements(self._tensor, index if isinstance(index, tuple) else (index,))


def at(x: Tensor) -> At:
    """Reads and writes elements of a tensor, with a mode for indices that are out of bounds.

    ``at(x)[index].get(mode=...)`` returns the elements; ``set``, ``add``, ``subtract``,
    ``multiply``, ``divide``, ``min`` and ``max(values, mode=...)`` return a tensor like x in which
    they are replaced by values, or combined with them; an element that the index names several
    times is combined with each. x stays as it is. All are differentiable by x and by the values,
    and batched.

    Plain ``x[index]`` and ``x.index_put`` raise an error for an index out of bounds, on
    accelerators one that ends the process.

    Args:
        x: a tensor.
    Returns:
        An object to index, as a tensor: by ints, slices, None, ``...`` and integer tensors.
        Negative indices count from the end. The methods' mode says what happens out of bounds:
        ``"clip"``: the nearest element is meant. ``"fill"``, for ``get``: the result is the
        fill_value there; by default nan, of integers the smallest, of unsigned ones the largest
        number, of bools True. ``"drop"``, for the others: nothing is written there.
    Raises:
        CallError: x is no tensor, the mode is another, or the index has something else in it.
        DimensionError: the index has too many parts.
    Example:
        >>> x, i = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 5])
        >>> at(x)[i].get(mode="fill", fill_value=0.0)
        tensor([1., 3., 0.])
        >>> at(x)[i].get(mode="clip")
        tensor([1., 3., 3.])
        >>> at(x)[i].add(10.0, mode="drop")
        tensor([11.,  2., 13.])

    Source: jax.numpy.ndarray.at.
    """
    if not isinstance(x, Tensor):
        raise CallError(f"torchlayers: at: takes a tensor, got {type(x).__name__}.")
    return At(x)


class Elements:
    """The elements of a tensor that an index names."""

    def __init__(self, tensor: Tensor, index: tuple[Any, ...]) -> None:
        self._tensor, self._index = tensor, index

    def get(self, *, mode: Read, fill_value: Any = None) -> Tensor:
        """The elements; out of bounds the nearest (``"clip"``), or fill_value (``"fill"``)."""
        x, (places, is_inside) = self._tensor, self._places(mode, ("fill", "clip"))
        flat = x.reshape(-1)
        if is_inside is None:
            return flat[places]
        elements = flat[places] if flat.shape[0] else flat.new_zeros(places.shape)
        value = _default_fill(x.dtype) if fill_value is None else fill_value
        return torch.where(is_inside, elements, torch.as_tensor(value).to(x))

    def set(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with the elements replaced by values; of equal indices, any one counts."""
        return self._write(values, mode, lambda x, places, new: x.scatter(0, places, new))

    def add(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with values added to the elements."""
        return self._write(values, mode, lambda x, places, new: x.scatter_add(0, places, new))

    def multiply(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with the elements multiplied by values."""
        return self._reduce(values, mode, "prod")

    def subtract(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with values subtracted from the elements."""
        return self.add(-torch.as_tensor(values).to(self._tensor), mode=mode)

    def divide(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with the elements divided by values; of integers a floating-point tensor."""
        ones = torch.ones_like(torch.true_divide(self._tensor, 1))
        return self._tensor / Elements(ones, self._index).multiply(values, mode=mode)

    def min(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with the smaller of each element and its values."""
        return self._reduce(values, mode, "amin")

    def max(self, values: Any, *, mode: Write) -> Tensor:
        """The tensor, with the larger of each element and its values."""
        return self._reduce(values, mode, "amax")

    def _reduce(self, values: Any, mode: str, by: str) -> Tensor:
        return self._write(
            values, mode, lambda x, places, new: x.scatter_reduce(0, places, new, by)
        )

    def _write(self, values: Any, mode: str, write: Any) -> Tensor:
        x, (places, is_inside) = self._tensor, self._places(mode, ("drop", "clip"))
        flat = x.reshape(-1)
        if is_inside is not None:  # one more element, for what is dropped
            places = torch.where(is_inside, places, flat.shape[0])
            flat = torch.cat([flat, flat.new_zeros(1)])
        new = torch.as_tensor(values).to(x).expand(places.shape)
        written: Tensor = write(flat, places.reshape(-1), new.reshape(-1))
        return written[: x.numel()].view(x.shape)

    def _places(self, mode: str, modes: tuple[str, str]) -> tuple[Tensor, Tensor | None]:
        """The places of the elements in the flat tensor, and which of them are inside, None if the
        mode puts all of them there."""
        if mode not in modes:
            raise CallError(
                f"torchlayers: at: mode must be {' or '.join(map(repr, modes))}, got {mode!r}."
            )
        parts, sizes = _layout(self._index, self._tensor)
        places = torch.zeros((), dtype=torch.int64, device=self._tensor.device)
        is_inside: Tensor | None = None
        for part in parts:
            index = part.indices
            if part.may_be_outside:
                index = torch.where(index < 0, index + part.size, index)
                if mode == "clip":
                    index = index.clamp(0, part.size - 1)
                else:
                    inside = (index >= 0) & (index < part.size)
                    index = torch.where(inside, index, 0)
                    is_inside = inside if is_inside is None else is_inside & inside
            places = places + index * part.step
        return places.expand(sizes), is_inside


class _Part(NamedTuple):
    """The indices along a dimension, shaped to broadcast to the result.

    Attributes:
        size, step: of the dimension: its size, and that of the dimensions behind it.
        may_be_outside: whether the caller named the indices by numbers.
    """

    indices: Tensor
    size: int
    step: int
    may_be_outside: bool


def _layout(index: tuple[Any, ...], x: Tensor) -> tuple[list[_Part], list[int]]:
    """The parts of an index, one for each dimension of x, and the shape of the elements.

    As in torch, the dimensions of tensors are where the first of them is, or in front if others are
    between them.
    """
    entries = _entries(index, x)
    shapes = [entry.shape for entry in entries if isinstance(entry, Tensor)]
    block = [*torch.broadcast_shapes(*shapes)]  # type: ignore[no-untyped-call]
    are_tensors = [isinstance(entry, Tensor) for entry in entries if not isinstance(entry, int)]
    first = are_tensors.index(True) if shapes else 0
    start = first if all(are_tensors[first : first + len(shapes)]) else 0
    others = sum(not is_tensor for is_tensor in are_tensors)

    parts: list[_Part] = []
    sizes: list[int] = []  # of the result, without those of tensors
    for entry in entries:
        if entry is None:
            sizes.append(1)
            continue
        dim = len(parts)
        size, step = x.shape[dim], math.prod(x.shape[dim + 1 :])
        if isinstance(entry, slice):
            indices = _indices(entry, size, x.device)
            behind = others - len(sizes) - 1 + (len(block) if len(sizes) < start else 0)
            sizes.append(indices.shape[0])
        else:
            indices = torch.as_tensor(entry, device=x.device)
            behind = others - start if indices.dim() else 0
        indices = indices.reshape((*indices.shape, *[1] * behind))
        parts.append(_Part(indices, size, step, not isinstance(entry, slice)))
    return parts, [*sizes[:start], *block, *sizes[start:]]


def _entries(index: tuple[Any, ...], x: Tensor) -> list[Any]:
    """The entries of an index, with slices in place of an ellipsis and of what is left out."""
    entries = [_check_entry(entry) for entry in index]
    missing = x.dim() - sum(entry is not None and entry is not ... for entry in entries)
    places = [i for i, entry in enumerate(entries) if entry is ...]
    if missing < 0 or len(places) > 1:
        raise DimensionError(
            f"torchlayers: at: the index has {x.dim() - missing} parts and {len(places)} ellipses "
            f"for a tensor of shape {tuple(x.shape)}."
        )
    place = places[0] if places else len(entries)
    return [*entries[:place], *[slice(None)] * missing, *entries[place + 1 :]]


def _check_entry(entry: Any) -> Any:
    if entry is None or entry is ... or isinstance(entry, slice):
        return entry
    if isinstance(entry, Tensor):
        if entry.dtype in _INTEGERS:
            return entry.long()
        got = f"a tensor of {entry.dtype}"
    elif hasattr(entry, "__index__") and not isinstance(entry, bool):
        return operator.index(entry)
    else:
        got = type(entry).__name__
    raise CallError(
        "torchlayers: at: an index is made of ints, slices, None, ... and integer tensors, got "
        f"{got}. For a mask, use torch.where."
    )


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _indices(entry: slice, size: int, device: torch.device) -> Tensor:
    if entry == slice(None):  # of any size, also a symbolic one
        return torch.arange(size, device=device)
    return (
        torch.arange(size, device=device)[entry]
        if (entry.step or 1) > 0
        else torch.tensor([*range(*entry.indices(size))], dtype=torch.int64, device=device)
    )


def _default_fill(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return torch.iinfo(dtype).min or torch.iinfo(dtype).max
