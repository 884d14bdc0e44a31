"""Colouring: which columns or rows of a sparse matrix can be computed by one product.

Columns without a common row can be added up without loss: one product J v with a 1 in v for each
of them has all their entries. So the columns are coloured, as few colours as possible, and one
product per colour is computed. Symmetric matrices need fewer, because an entry can be read from
either of its two places; so do matrices with a few dense rows and columns, if some products are
by columns and some by rows. The algorithms are greedy, and in C++ (csrc/sparse).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import StructureError
from torchlayers.transforms.sparse.pattern import (
    PatternLike,
    SparsityPattern,
    as_pattern,
    draw,
    is_small,
)
from torchlayers.transforms.sparse.reading import Reading, needed_colors, reading_of

__all__ = ["Coloring", "coloring"]

Mode: TypeAlias = Literal["columns", "rows", "bidirectional", "star", "acyclic"]
Order: TypeAlias = Literal["natural", "largest_first", "smallest_last", "incidence_degree"]

_MODES = ("columns", "rows", "bidirectional", "star", "acyclic")
_ORDERS: tuple[Order, ...] = ("largest_first", "smallest_last", "incidence_degree", "natural")
# Patterns that take more steps than this are coloured in the first order alone, and by star
# colourings, which take longer, those with more entries.
_MANY_STEPS = 100_000_000
_MANY_ENTRIES = 300_000
_FEW_COLORS = 64  # that are tried first
_COLUMN_MARKS, _ROW_MARKS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, eq=False, repr=False)
class Coloring:
    """A sparsity pattern with colours: one product with the matrix is computed for each.

    Returned by :func:`torchlayers.coloring`, and taken by ``jacfwd``, ``jacrev`` and ``hessian``
    as ``sparse=``. It can be kept, pickled and printed: ``print`` draws the matrix with, at each
    entry, the product that it is read from: a lower-case letter for one by columns, a capital for
    one by rows.

    Attributes:
        pattern: the pattern, made symmetric in the modes "star" and "acyclic".
        mode: "columns" (one jvp per colour), "rows" (one vjp per colour), "bidirectional" (some
            of each), or for symmetric matrices "star" or "acyclic".
        order: the order in which vertices were coloured.
        column_colors, row_colors: int64 tensors with the colour of each column and row; -1 for
            those that no product needs; None if the mode has no products by columns, or by rows.
    Example:
        >>> tridiagonal = torch.ones(5, 5).triu(-1).tril(1)
        >>> colored = coloring(tridiagonal, "star")
        >>> colored
        Coloring(mode='star', num_colors=3, shape=(5, 5), nnz=13)
        >>> f = lambda x: (x[1:] * x[:-1]).sum()
        >>> torchlayers.hessian(f, sparse=colored)(torch.ones(5)).shape
        torch.Size([5, 5])
    """

    pattern: SparsityPattern
    mode: Mode
    order: str
    column_colors: Tensor | None
    row_colors: Tensor | None

    @cached_property
    def num_columns(self) -> int:
        """Number of products by columns: colours of columns."""
        return _count(self.column_colors)

    @cached_property
    def num_rows(self) -> int:
        """Number of products by rows: colours of rows."""
        return _count(self.row_colors)

    @property
    def num_colors(self) -> int:
        """Number of products."""
        return self.num_columns + self.num_rows

    @property
    def is_symmetric(self) -> bool:
        """Whether entries are read from either of their two places."""
        return self.mode in ("star", "acyclic")

    @cached_property
    def reading(self) -> Reading:
        """Where each entry is found in the products.

        Raises:
            StructureError: some entry can't be told from others of the same colour.
        """
        return reading_of(
            self.pattern,
            self.column_colors,
            self.column_colors if self.is_symmetric else self.row_colors,
            self.mode,
        )

    @cached_property
    def places(self) -> Tensor:
        """For each unknown its place in all products one after the other, flattened."""
        products, elements = self.reading.products, self.reading.elements
        (height, width), columns = self.pattern.shape, self.num_columns
        by_columns = products * height + elements
        # Without a color, there is one product of zeros all the same.
        first = 0 if self.column_colors is None else max(columns, 1) * height
        by_rows = first + (products - columns) * width + elements
        return torch.where(products < columns, by_columns, by_rows)

    @cached_property
    def blocks(self) -> dict[Any, list[list[tuple[SparsityPattern, Tensor | None]]]]:
        """The blocks of the matrix by the sizes of outputs and inputs, so far."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what was computed from the colors."""
        colors = self.column_colors, self.row_colors
        return Coloring, (self.pattern, self.mode, self.order, *colors)

    def __repr__(self) -> str:
        colors = f"num_colors={self.num_colors}"
        if self.mode == "bidirectional":
            colors += f" ({self.num_columns} by columns, {self.num_rows} by rows)"
        shape, nnz = self.pattern.shape, self.pattern.nnz
        return f"Coloring(mode={self.mode!r}, {colors}, shape={shape}, nnz={nnz})"

    def __str__(self) -> str:
        names = _COLUMN_MARKS[: self.num_columns] + _ROW_MARKS[: self.num_rows]
        marks = None
        if is_small(self.pattern) and len(names) == self.num_colors:
            products, unknowns = self.reading.products, self.reading.unknown_of_entry
            of_entry = products if unknowns is None else products[unknowns]
            marks = [names[product] for product in of_entry.tolist()]
        return "\n".join([repr(self), *draw(self.pattern, marks)])


def coloring(
    pattern: PatternLike,
    mode: Mode | Literal["auto"] = "auto",
    order: Order | None = None,
) -> Coloring:
    """Colours a sparsity pattern, so that few products suffice for the matrix.

    Args:
        pattern: a :class:`SparsityPattern`; a dense mask; a sparse tensor of torch.sparse; or a
            sparse matrix of SciPy's.
        mode: of a Jacobian:

            - "columns": products J v (jvps); columns of one colour have no row in common.
            - "rows": products u J (vjps); rows of one colour have no column in common.
            - "bidirectional": both kinds, for matrices with a few dense rows and columns; each
              entry is read from a product of one kind.
            - "auto": of these three the one with the fewest colours.

            Of a symmetric matrix, such as a Hessian (products H v). The pattern is made symmetric:

            - "star": each entry is read from one of its two places.
            - "acyclic": fewer colours still; entries follow from each other by substitution,
              which adds their rounding errors.
        order: in which order to colour: "natural", "largest_first", "smallest_last" or
            "incidence_degree". None tries all of them and keeps the best; on large patterns, where
            that takes long, "largest_first" alone.
    Returns:
        A :class:`Coloring`, for ``jacfwd``, ``jacrev`` and ``hessian``.
    Raises:
        StructureError: the pattern does not have two dimensions, or is not square in the modes of
            symmetric matrices.
        ValueError: mode or order is none of these.
    Example:
        >>> arrow = torch.eye(6)
        >>> arrow[0], arrow[:, 0] = 1, 1
        >>> print(coloring(arrow))
        Coloring(mode='bidirectional', num_colors=3 (2 by columns, 1 by rows), shape=(6, 6), nnz=16)
        aAAAAA
        ab⋅⋅⋅⋅
        a⋅b⋅⋅⋅
        a⋅⋅b⋅⋅
        a⋅⋅⋅b⋅
        a⋅⋅⋅⋅b
        >>> coloring(arrow, "star")
        Coloring(mode='star', num_colors=2, shape=(6, 6), nnz=16)

    Source: Gebremedhin, Manne and Pothen, "What color is your Jacobian? Graph coloring for
        computing derivatives" (2005); for symmetric matrices Gebremedhin, Tarafdar, Manne and
        Pothen (2007); for both directions Coleman and Verma (1998) and Montoison, Dalle and
        Gebremedhin, "Revisiting sparse matrix coloring and bicoloring" (2025).
    """
    if mode not in (*_MODES, "auto"):
        raise ValueError(
            "torchlayers: coloring: mode must be 'auto', 'columns', 'rows', 'bidirectional', "
            f"'star' or 'acyclic', got {mode!r}."
        )
    if order is not None and order not in _ORDERS:
        raise ValueError(
            "torchlayers: coloring: order must be 'natural', 'largest_first', 'smallest_last', "
            f"'incidence_degree' or None, got {order!r}."
        )
    checked = as_pattern(pattern)
    orders = _ORDERS if order is None else (order,)
    if mode in ("star", "acyclic"):
        return _symmetric(checked, mode, orders)
    return _Bipartite(checked, orders).best(mode)


class _Bipartite:
    """Colourings of a rectangular matrix: vertices are its columns, then its rows."""

    def __init__(self, pattern: SparsityPattern, orders: tuple[Order, ...]) -> None:
        self.pattern = pattern
        self.orders = orders
        self.height, self.width = pattern.shape
        # The entries of each row, and of each column.
        self.of_rows = torch.bincount(pattern.rows, minlength=self.height)
        self.of_columns = torch.bincount(pattern.cols, minlength=self.width)

    @cached_property
    def graph(self) -> _C.PatternGraph:
        size = self.width + self.height
        return _C.PatternGraph(self.pattern.cols, self.pattern.rows + self.width, size)

    def best(self, mode: Mode | Literal["auto"]) -> Coloring:
        if mode == "columns":
            return self.by_columns()
        if mode == "rows":
            return self.by_rows()
        if mode == "bidirectional":
            return self.bidirectional()
        # The entries of one row need as many products by columns, and conversely.
        first, second = self.by_columns, self.by_rows
        most_in_a_row, most_in_a_column = _max(self.of_rows), _max(self.of_columns)
        if most_in_a_column < most_in_a_row:
            first, second = second, first
        best = first()
        if max(most_in_a_row, most_in_a_column) < best.num_colors:
            best = min(best, second(), key=_num_colors)
        # A product has at most one entry for each row or column.
        least = -(-self.pattern.nnz // max(self.height, self.width, 1))
        if best.num_colors > max(least, 2):
            best = min(best, self.bidirectional(), key=_num_colors)
        return best

    def by_columns(self) -> Coloring:
        order, colors = self._at_distance_two(0, self.width, self.of_columns, self.of_rows)
        return Coloring(self.pattern, "columns", order, colors, None)

    def by_rows(self) -> Coloring:
        begin, end = self.width, self.width + self.height
        order, colors = self._at_distance_two(begin, end, self.of_rows, self.of_columns)
        return Coloring(self.pattern, "rows", order, None, colors)

    def _at_distance_two(
        self, begin: int, end: int, degrees: Tensor, across: Tensor
    ) -> tuple[Order, Tensor]:
        """Colours the vertices from begin to end, which have so many entries."""
        used = degrees > 0
        least, most = _max(across), int(used.sum())
        colors = torch.where(used, used.cumsum(0) - 1, -1)  # all differ
        chosen = self.orders[0]
        for order in self._affordable(across):
            if most <= least:
                break
            coloring = self.graph.distance_two(begin, end, order, most)
            if coloring is not None:
                chosen, colors, most = order, torch.where(used, coloring, -1), _count(coloring)
        return chosen, colors

    def _affordable(self, across: Tensor) -> tuple[Order, ...]:
        steps = int((across * across).sum())
        return self.orders if steps <= _MANY_STEPS else self.orders[:1]

    def bidirectional(self) -> Coloring:
        """Keeps the best of star colourings of the graph, with and without neutral vertices.

        The two colourings in one direction are among them: all rows, or all columns, neutral.
        """
        neutral = self.graph.neutral_vertices(self.width)
        few = self.orders[:1]
        orders = self.orders if self.pattern.nnz <= _MANY_ENTRIES else few
        kinds = [(order, True, neutral) for order in orders]
        kinds += [(order, False, neutral) for order in few]
        best = _fewest(kinds, self._star)
        if self.pattern.nnz * best.num_colors <= _MANY_STEPS:
            more = itertools.product(orders, (False, True), (None,))
            best = _fewest([*more], self._star, best)
        return best

    def _star(
        self, order: Order, cautious: bool, neutral: Tensor | None, most: int
    ) -> Coloring | None:
        colors = self.graph.star(order, cautious, self.width, neutral, most)
        if colors is None:
            return None
        by_columns, by_rows = colors[: self.width], colors[self.width :]
        by_rows = torch.where(by_rows < 0, -1, by_rows - self.width)
        columns = _count(by_columns)
        needed = needed_colors(self.pattern, by_columns, by_rows, is_symmetric=False)
        return Coloring(
            self.pattern,
            "bidirectional",
            order,
            _renumbered(by_columns, needed[:columns]),
            _renumbered(by_rows, needed[columns:]),
        )


def _symmetric(pattern: SparsityPattern, mode: Mode, orders: tuple[Order, ...]) -> Coloring:
    height, width = pattern.shape
    if height != width:
        raise StructureError(
            f"torchlayers: coloring: mode {mode!r} is for symmetric matrices, such as Hessians, "
            f"got shape {pattern.shape}. Use 'columns', 'rows' or 'bidirectional'."
        )
    if not pattern.is_symmetric:
        pattern = pattern | pattern.T
    if pattern.nnz == width * width:
        return Coloring(pattern, mode, orders[0], torch.arange(width), None)
    upper = pattern.rows < pattern.cols
    graph = _C.PatternGraph(pattern.rows[upper], pattern.cols[upper], width)
    used = torch.bincount(pattern.cols, minlength=width) > 0
    if mode == "acyclic":
        candidates = [
            Coloring(pattern, mode, order, _renumbered(torch.where(used, colors, -1)), None)
            for order, colors in ((order, graph.acyclic(order)) for order in orders)
        ]
        return min(candidates, key=_num_colors)
    affordable = orders if pattern.nnz <= _MANY_ENTRIES else orders[:1]

    def star(order: Order, cautious: bool, most: int) -> Coloring | None:
        coloring = graph.star(order, cautious, width, None, most)
        if coloring is None:
            return None
        colors = torch.where(used, coloring, -1)
        needed = needed_colors(pattern, colors, colors, is_symmetric=True)
        return Coloring(pattern, mode, order, _renumbered(colors, needed), None)

    return _fewest([*itertools.product(affordable, (False, True))], star)


def _fewest(
    kinds: Sequence[tuple[Any, ...]],
    color: Callable[..., Coloring | None],
    best: Coloring | None = None,
) -> Coloring:
    """The coloring with the fewest colors of these kinds, and of the best one so far.

    Many colors take long, in the worst case as many steps as there are pairs of vertices: they are
    only allowed if no kind takes few. Some may turn out not to be needed, seldom more than half.
    """
    most = _FEW_COLORS
    while True:
        left = []
        for kind in kinds:
            candidate = color(*kind, most)
            if candidate is None:
                left.append(kind)
            elif best is None or candidate.num_colors < best.num_colors:
                best = candidate
        if best is not None and (not left or 2 * best.num_colors <= most):
            return best
        kinds, most = left, most * 8


def _renumbered(colors: Tensor, needed: Tensor | None = None) -> Tensor:
    """Numbers the needed colours from 0 without gaps; the others become -1."""
    if needed is None:
        needed = torch.bincount(colors[colors >= 0], minlength=1) > 0
    numbers = torch.where(needed, needed.cumsum(0) - 1, -1)
    numbers = torch.cat([numbers, numbers.new_full((1,), -1)])  # -1 stays -1
    return numbers[colors]


def _count(colors: Tensor | None) -> int:
    return 0 if colors is None or not colors.numel() else int(colors.max()) + 1


def _max(counts: Tensor) -> int:
    return int(counts.max()) if counts.numel() else 0


def _num_colors(coloring: Coloring) -> int:
    return coloring.num_colors
