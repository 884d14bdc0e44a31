"""Comparison of a sparse matrix with the dense one, by one random product."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchlayers.core.errors import StructureError
from torchlayers.transforms.sparse.pattern import SparsityPattern

# At most this many lines that differ are searched for an entry that the pattern lacks.
_MOST = 64


def check_product(
    api: str,
    pattern: SparsityPattern,
    values: Tensor,
    product: Callable[[Tensor], Tensor],
    *,
    by_rows: bool,
) -> None:
    """Compares the sparse matrix with product, which multiplies the true one by a vector.

    Args:
        api: the transform's name.
        pattern, values: the sparse matrix.
        product: takes a vector v to ``J @ v``; with by_rows to ``v @ J``.
        by_rows: see product.
    Raises:
        StructureError: they differ. The message names the first missing entry.
    """
    lines, places = (indices.to(values.device) for indices in (pattern.rows, pattern.cols))
    count, size = pattern.shape
    if by_rows:
        lines, places, count, size = places, lines, size, count
    generator = torch.Generator().manual_seed(0)  # the program's random numbers stay as they are
    vector = torch.randn(size, generator=generator, dtype=torch.float64).to(values)
    true = product(vector).to(values.dtype)
    terms = values * vector[places]
    zeros = torch.zeros(count, dtype=values.dtype, device=values.device)
    error = (zeros.index_add(0, lines, terms) - true).abs()
    scale = zeros.index_add(0, lines, terms.abs()) + true.abs()
    differs = error > torch.finfo(values.dtype).eps ** 0.5 * scale
    if not bool(differs.any()):
        return
    wrong = differs.nonzero().squeeze(1).tolist()
    for line in wrong[:_MOST]:
        # What the product has from elements outside the pattern: zero, if the pattern is right.
        beyond = vector.clone()
        beyond[places[lines == line]] = 0
        if bool(product(beyond)[line] != 0):
            place = _first(product, line, beyond)
            row, col = (place, line) if by_rows else (line, place)
            raise StructureError(
                f"torchlayers: {api}: the pattern is too small: it lacks entry ({row}, {col}), "
                "which is not zero (row: element of the outputs; column: element of the "
                "differentiated arguments). Add it, or detect the pattern with sparse=True."
            )
    raise StructureError(
        f"torchlayers: {api}: the sparse matrix differs from the dense one in "
        f"{'column' if by_rows else 'row'} {wrong[0]}. The pattern lacks an entry, or the matrix "
        "is not symmetric although its coloring is for symmetric ones."
    )


def _first(product: Callable[[Tensor], Tensor], line: int, vector: Tensor) -> int:
    """The first element of the vector that has an effect on a line of the product, by bisection."""
    low, high = 0, vector.numel()
    while high - low > 1:
        middle = (low + high) // 2
        part = torch.zeros_like(vector)
        part[low:middle] = vector[low:middle]
        low, high = (low, middle) if bool(product(part)[line] != 0) else (middle, high)
    return low
