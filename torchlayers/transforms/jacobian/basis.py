"""Rows of the identity that serve as tangents, assembly of the Jacobian, checks of arguments."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DtypeError, NotTensorError, StructureError, instead
from torchlayers.distributed import dtensor
from torchlayers.distributed.mesh import MeshExecution
from torchlayers.transforms import chunking
from torchlayers.transforms.batching_options import BatchingOptions

# At least this many rows justify a separate forward or backward pass.
_ENOUGH = 256


def run(
    work: Callable[[int, int], list[Tensor]],
    tensors: Sequence[Tensor],
    options: BatchingOptions,
    api: str,
    at_once: bool = False,
) -> list[list[Tensor]]:
    """Calls work for all rows of the identity: in chunks, or without a chunk_size by tensor."""
    total = sum(leaf.numel() for leaf in tensors)
    is_large = isinstance(total, int) and total >= 2 * _ENOUGH  # not a symbolic size
    if options.at_once and not at_once and is_large:
        sizes = _by_tensor(tensors)
        starts = itertools.accumulate(sizes, initial=0)
        return [work(start, size) for start, size in zip(starts, sizes, strict=False)]
    return options.run(work, total, tensors[0].device, api)


def run_local_parts(
    spread: MeshExecution,
    work: Callable[[int, int], list[Tensor]],
    tensors: Sequence[Tensor],
    options: BatchingOptions,
    api: str,
) -> list[list[Tensor]]:
    """Calls work for this rank's rows of the identity: its part of dim 0 of each tensor."""
    parts = []
    offset = 0
    for leaf in tensors:
        start, size = 0, leaf.numel()
        if leaf.dim():
            of_one = size // max(leaf.shape[0], 1)
            start, size = (count * of_one for count in spread.part(leaf.shape[0]))
        # If this rank has no rows, one row is computed for its shape.
        is_none = not size and leaf.numel() > 0
        first = offset if is_none else offset + start
        run_part = partial(_from, first, work)
        results = options.run(run_part, max(size, int(is_none)), leaf.device, api)
        joined = chunking.join_leaves(results, torch.cat)
        parts.append([rows.narrow(0, 0, 0) for rows in joined] if is_none else joined)
        offset += leaf.numel()
    return parts


def _from(
    first: int, work: Callable[[int, int], list[Tensor]], start: int, size: int
) -> list[Tensor]:
    return work(first + start, size)


def joined_rows(spread: MeshExecution, rows: Tensor, output: Tensor, primal: Tensor) -> Any:
    """Returns the Jacobian of an output with respect to a primal, from this rank's rows."""
    if not output.dim():
        return spread.gather(rows.view(primal.shape), None, 1)
    size = spread.part(output.shape[0])[1]
    return spread.gather(rows.reshape(size, *output.shape[1:], *primal.shape), 0, output.shape[0])


def joined_columns(spread: MeshExecution, columns: Tensor, primal: Tensor) -> Any:
    """Returns the same from this rank's columns, which are in dimension 0."""
    dim = columns.dim() - 1
    if not primal.dim():
        return spread.gather(columns.squeeze(0), None, 1)
    size = spread.part(primal.shape[0])[1]
    shape = *columns.shape[1:], size, *primal.shape[1:]
    return spread.gather(columns.movedim(0, -1).reshape(shape), dim, primal.shape[0])


def _by_tensor(tensors: Sequence[Tensor]) -> list[int]:
    """Splits the rows at tensor boundaries into chunks that are large enough for a separate pass.

    A pass does no arithmetic for the tensors that have no rows in its chunk.
    """
    sizes = [0]
    for leaf in tensors:
        if sizes[-1] >= _ENOUGH and leaf.numel():
            sizes.append(0)
        sizes[-1] += leaf.numel()
    return sizes


def identity_rows(tensors: Sequence[Tensor], start: int, size: int) -> list[Tensor | None]:
    """Returns rows start to start + size of the identity, as one block of columns per tensor.

    Each row of a block has its tensor's shape. A block of zeros is None.
    """
    begins = itertools.accumulate((leaf.numel() for leaf in tensors), initial=0)
    return [_block(leaf, start - begin, size) for leaf, begin in zip(tensors, begins, strict=False)]


def _block(leaf: Tensor, start: int, size: int) -> Tensor | None:
    """Returns the block of rows whose columns are the leaf's elements; None if it is zero."""
    columns = leaf.numel()
    if size and not -size < start < columns:
        return None
    if start == 0:
        block = torch.eye(size, columns, dtype=leaf.dtype, device=leaf.device)
    else:
        block = torch.zeros(size, columns, dtype=leaf.dtype, device=leaf.device)
        block.diagonal(start).fill_(1)
    if leaf.dim() != 1:
        block = block.view(size, *leaf.shape)
    return dtensor.placed_like(block, leaf) if dtensor.is_dtensor_below(leaf) else block


def fill_blocks(selected: tuple[Tensor, ...], blocks: list[Tensor | None]) -> list[Tensor | None]:
    remaining = iter(selected)
    return [None if block is None else next(remaining) for block in blocks]


def as_only_row(gradient: Tensor, output: Tensor) -> Tensor:
    """Returns the Jacobian of an output of one element from its gradient."""
    return gradient.view(output.shape + gradient.shape) if output.dim() else gradient


def split_by_output(
    whole: list[Tensor], outputs: list[Tensor], primals: list[Tensor]
) -> list[list[Tensor]]:
    """Splits the stacked rows of each primal into a Jacobian for each output and primal."""
    if len(outputs) == 1:
        shape = outputs[0].shape
        return [
            [rows.view(shape + primal.shape) for rows, primal in zip(whole, primals, strict=True)]
        ]
    sizes = [leaf.numel() for leaf in outputs]
    split = [torch.split(rows, sizes, dim=0) for rows in whole]
    return [
        [
            rows[i].view(output.shape + primal.shape)
            for rows, primal in zip(split, primals, strict=True)
        ]
        for i, output in enumerate(outputs)
    ]


def split_columns(columns: Tensor, primals: list[Tensor]) -> list[Tensor]:
    """Splits one output's columns, in the last dimension, into a Jacobian for each primal."""
    if len(primals) == 1 and primals[0].dim() == 1:
        return [columns]
    blocks = torch.split(columns, [leaf.numel() for leaf in primals], dim=-1)
    return [
        block.reshape(block.shape[:-1] + primal.shape)
        for block, primal in zip(blocks, primals, strict=True)
    ]


def refuse_complex(api: str, side: str, values: Any) -> None:
    """Raises DtypeError if values, the arguments or outputs, hold a complex tensor."""
    for i, leaf in enumerate(pytree.flatten(values)[0]):
        if isinstance(leaf, Tensor) and leaf.is_complex():
            is_argument = side == "argument"
            name = pytree.leaf_name(side, values, i) if is_argument else f"{side} {i}"
            all_of_them = "inputs" if is_argument else "outputs"
            raise DtypeError(
                f"torchlayers: {api}: Expected all {all_of_them} to be real but received complex "
                f"numbers ({leaf.dtype}) as {name}. Pass real and imaginary parts "
                "(torch.view_as_real)."
            )


def require_tensors(
    api: str, leaves: list[Any], args: tuple[Any, ...], places: tuple[int, ...] | None = None
) -> None:
    """Raises an error unless the leaves, those of args or of args[place], are tensors."""
    if not leaves:
        raise StructureError(
            f"torchlayers: {api}: the arguments contain no tensor to differentiate with respect to."
        )
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: {api}: {pytree.leaf_name('argument', args, i, places)} must be a "
                f"tensor to be differentiated, got {type(leaf).__name__} ({leaf!r}). Convert it to "
                f"a tensor, or {instead(api)}."
            )
