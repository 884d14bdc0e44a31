"""Where the entries of a sparse matrix are found in the products of a colouring, one per colour."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import StructureError
from torchlayers.transforms.sparse.pattern import SparsityPattern

# Counting by a table is faster than by sorting, while the table is small.
_SMALL_TABLE = 1 << 27


class Reading(NamedTuple):
    """The positions of a matrix's unknowns in its products.

    An unknown is an entry, or for an acyclic colouring a pair of equal entries.

    Attributes:
        products: for each unknown the number of its product: first the columns' colours, then the
            rows'.
        elements: for each unknown its element in the product: a row in a product by columns, a
            column in one by rows.
        steps: for an acyclic colouring, additions that turn the sums read into unknowns: for each
            step, ``unknowns[targets] += sign * unknowns[sources]`` with the old unknowns.
        unknown_of_entry: for each entry its unknown; None if these are the same.
    """

    products: Tensor
    elements: Tensor
    steps: tuple[tuple[int, Tensor, Tensor], ...] = ()
    unknown_of_entry: Tensor | None = None


def reading_of(
    pattern: SparsityPattern,
    column_colors: Tensor | None,
    row_colors: Tensor | None,
    mode: str,
) -> Reading:
    """The reading of a colouring; of a symmetric one, both colours are those of the columns.

    Raises:
        StructureError: the colouring does not fit the pattern.
    """
    if mode == "acyclic":
        assert column_colors is not None
        return _by_substitution(pattern, column_colors)
    in_columns, in_rows = _readable(pattern, column_colors, row_colors)
    if not bool((in_columns | in_rows).all()):
        at = int((~(in_columns | in_rows)).nonzero()[0])
        raise StructureError(
            f"torchlayers: Coloring: entry ({int(pattern.rows[at])}, {int(pattern.cols[at])}) "
            "can't be told from others of the same color. Use torchlayers.coloring, which gives "
            "valid colors."
        )
    products = torch.zeros_like(pattern.rows)
    if column_colors is not None:
        products = torch.where(in_columns, column_colors[pattern.cols], products)
    if row_colors is not None:
        is_symmetric = row_colors is column_colors
        first = 0 if is_symmetric or column_colors is None else _size(column_colors)
        products = torch.where(in_columns, products, first + row_colors[pattern.rows])
    return Reading(products, torch.where(in_columns, pattern.rows, pattern.cols))


def needed_colors(
    pattern: SparsityPattern, column_colors: Tensor, row_colors: Tensor, *, is_symmetric: bool
) -> Tensor:
    """Which of the colours suffice to read all entries: a mask over the columns', then the rows'.

    A small vertex cover, greedily: an entry that can be read in one place needs that color; one
    that can be read in two needs either.
    """
    in_columns, in_rows = _readable(pattern, column_colors, row_colors)
    columns = _size(column_colors)
    first = column_colors[pattern.cols]
    second = row_colors[pattern.rows]
    if not is_symmetric:
        second = torch.where(second < 0, -1, second + columns)
    total = columns if is_symmetric else columns + _size(row_colors)
    needed = torch.zeros(total, dtype=torch.bool)
    needed[first[in_columns & (~in_rows | (first == second))]] = True
    needed[second[in_rows & ~in_columns]] = True
    either = in_columns & in_rows & ~needed[first] & ~needed[second]
    pairs = torch.stack([first[either], second[either]]).sort(dim=0).values
    edges = {(a, b) for a, b in torch.unique(pairs, dim=1).T.tolist()}
    while edges:
        degrees: dict[int, int] = {}
        for edge in edges:
            for color in edge:
                degrees[color] = degrees.get(color, 0) + 1
        taken = min(degrees, key=lambda color: (-degrees[color], color))
        needed[taken] = True
        edges = {edge for edge in edges if taken not in edge}
    return needed


def _readable(
    pattern: SparsityPattern, column_colors: Tensor | None, row_colors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Whether each entry is the only one of its column's color in its row, and conversely."""
    rows, cols = pattern.rows, pattern.cols
    none = torch.zeros_like(rows, dtype=torch.bool)
    in_columns = none if column_colors is None else _is_alone(rows, column_colors[cols])
    if row_colors is column_colors:  # of a symmetric pattern: the same for (col, row)
        by_columns = torch.empty_like(in_columns)
        by_columns[torch.argsort(cols, stable=True)] = in_columns
        return in_columns, by_columns
    in_rows = none if row_colors is None else _is_alone(cols, row_colors[rows])
    return in_columns, in_rows


def _is_alone(lines: Tensor, colors: Tensor) -> Tensor:
    """Whether no other entry has the same line and color; False for color -1."""
    if not lines.numel():
        return torch.zeros_like(lines, dtype=torch.bool)
    count = _size(colors)
    keys = lines * (count + 1) + colors + 1
    size = (int(lines.max()) + 1) * (count + 1)
    if size <= _SMALL_TABLE:
        alone = torch.bincount(keys, minlength=size)[keys] == 1
    else:
        _, places, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        alone = counts[places] == 1
    return alone & (colors >= 0)


def _size(colors: Tensor) -> int:
    return int(colors.max()) + 1 if colors.numel() else 0


def _by_substitution(pattern: SparsityPattern, colors: Tensor) -> Reading:
    rows, cols = pattern.rows, pattern.cols
    upper, diagonal, lower = rows < cols, rows == cols, rows > cols
    edges = int(upper.sum())
    graph = _C.PatternGraph(rows[upper], cols[upper], pattern.shape[0])
    at, parents = graph.substitution(colors)
    others = rows[upper] + cols[upper] - at
    on_diagonal = rows[diagonal]
    unknown = torch.empty_like(rows)
    unknown[upper] = torch.arange(edges)
    unknown[diagonal] = edges + torch.arange(on_diagonal.numel())
    # The lower triangle, by columns, is the upper one by rows.
    below = lower.nonzero().squeeze(1)
    unknown[below[torch.argsort(cols[below], stable=True)]] = torch.arange(edges)
    return Reading(
        torch.cat([colors[others], colors[on_diagonal]]),
        torch.cat([at, on_diagonal]),
        _additions(parents),
        unknown,
    )


def _additions(parents: Tensor) -> tuple[tuple[int, Tensor, Tensor], ...]:
    """The steps that solve ``sum = unknown + sum of the unknowns below it`` in a forest.

    With N the matrix that adds up what is directly below, the unknowns are (1 + N)^-1 times the
    sums, and that is the product of 1 - N, 1 + N^2, 1 + N^4, …; N^k has a 1 for each unknown and
    the one k above it. So there are as many steps as the depth has binary digits.
    """
    steps = []
    sign = -1
    above = parents
    while bool((above >= 0).any()):
        sources = (above >= 0).nonzero().squeeze(1)
        steps.append((sign, sources, above[sources]))
        sign = 1
        above = torch.where(above >= 0, above[above.clamp(min=0)], -1)
    return tuple(steps)
