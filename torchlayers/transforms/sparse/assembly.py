"""Assembles the values read from products into sparse matrices."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import TransformError
from torchlayers.transforms.sparse.pattern import SparsityPattern

Layout: TypeAlias = Literal["coo", "csr", "values", "dense"]


def check_layout(api: str, layout: str) -> None:
    if layout not in ("coo", "csr", "values", "dense"):
        raise ValueError(
            f"torchlayers: {api}: layout must be 'coo', 'csr', 'values' or 'dense', got {layout!r}."
        )


def assemble(
    api: str, pattern: SparsityPattern, values: Tensor, layout: Layout, samples: int
) -> Tensor:
    """The sparse tensor with these values, in the pattern's order, which a vmap may batch.

    Args:
        api: the transform's name, for errors.
        values: of shape ``(*samples, nnz)``, with so many dimensions of samples.
    Raises:
        TransformError: layout is "csr", and there are samples.
    """
    is_batched = _C.batched_levels(values) != 0
    if layout == "csr" and (samples or is_batched):
        raise TransformError(
            f"torchlayers: {api}: a CSR matrix can't be batched under vmap, because torch's has no "
            "strides. Use layout='coo', or layout='values', which returns the values alone."
        )
    if is_batched:
        return cast(Tensor, _Batched.apply(values, pattern))  # type: ignore[no-untyped-call]
    return _of_samples(values, pattern) if samples else pattern.to_sparse(values, layout)


class _Batched(torch.autograd.Function):
    """Makes COO matrices under vmap: one matrix with a dimension of samples in front."""

    @staticmethod
    def forward(values: Tensor, pattern: SparsityPattern) -> Tensor:
        return _of_samples(values, pattern)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.pattern = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        dense = grads[0].to_dense() if grads[0].is_sparse else grads[0]
        rows, cols = (indices.to(dense.device) for indices in (ctx.pattern.rows, ctx.pattern.cols))
        return dense[..., rows, cols], None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], values: Tensor, pattern: SparsityPattern
    ) -> tuple[Tensor, int]:
        values = values.movedim(cast(int, in_dims[0]), 0)
        if _C.batched_levels(values):
            return cast(Tensor, _Batched.apply(values, pattern)), 0  # type: ignore[no-untyped-call]
        return _of_samples(values, pattern), 0


def _of_samples(values: Tensor, pattern: SparsityPattern) -> Tensor:
    """COO matrix of shape (*samples, *pattern.shape) from values of shape (*samples, nnz)."""
    samples = values.shape[:-1]
    entries = pattern.indices.to(values.device)
    counts = [torch.arange(size, device=values.device) for size in samples]
    of_samples = torch.stack(torch.meshgrid(*counts, indexing="ij")).flatten(1)
    indices = torch.cat(
        [
            of_samples.repeat_interleave(pattern.nnz, dim=1),
            entries.repeat(1, of_samples.shape[1]),
        ]
    )
    shape = (*samples, *pattern.shape)
    return _C.torch_coo_tensor(
        indices, values.flatten(), shape, is_coalesced=True, check_invariants=False
    )


def blocks_of(
    pattern: SparsityPattern, heights: Sequence[int], widths: Sequence[int]
) -> list[list[tuple[SparsityPattern, Tensor | None]]]:
    """Cuts a matrix into blocks: for each its pattern, and which entries it has (None for all)."""
    if len(heights) == len(widths) == 1:
        return [[(pattern, None)]]
    ends = [torch.tensor(sizes, dtype=torch.int64).cumsum(0) for sizes in (heights, widths)]
    down = torch.bucketize(pattern.rows, ends[0], right=True)
    across = torch.bucketize(pattern.cols, ends[1], right=True)
    lines = []
    for i, height in enumerate(heights):
        line: list[tuple[SparsityPattern, Tensor | None]] = []
        for k, width in enumerate(widths):
            inside = ((down == i) & (across == k)).nonzero().squeeze(1)
            rows = pattern.rows[inside] - (int(ends[0][i]) - height)
            cols = pattern.cols[inside] - (int(ends[1][k]) - width)
            line.append((SparsityPattern(rows, cols, (height, width), pattern.unknown), inside))
        lines.append(line)
    return lines
