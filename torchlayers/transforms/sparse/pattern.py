"""Sparsity patterns: which entries of a Jacobian or Hessian can be nonzero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.errors import StructureError

__all__ = ["PatternLike", "SparsityPattern", "as_pattern"]

# A SparsityPattern; a dense mask or matrix; a torch.sparse tensor; a matrix or array of SciPy's.
PatternLike: TypeAlias = Any

# Above these sizes, one character stands for several entries.
_MOST_ROWS, _MOST_COLUMNS = 16, 40
# The bit of a braille character for each of its dots, by row and column.
_BRAILLE = torch.tensor([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


@dataclass(frozen=True, eq=False, repr=False)
class SparsityPattern:
    """The entries of a matrix that can be nonzero; all others are zero for certain.

    As the pattern of a function's Jacobian, a row is an element of the flattened outputs (the
    leaves of the output pytree one after the other), and a column an element of the flattened
    inputs (the leaves of the differentiated arguments one after the other). Patterns are immutable
    and can be compared, pickled, printed (``print`` draws the matrix) and united (``a | b``).

    Attributes:
        rows, cols: int64 CPU tensors of shape ``(nnz,)``: the entries, sorted by row, then by
            column, without duplicates. Use :meth:`from_coo` for entries in another order.
        shape: numbers of rows and columns.
        unknown: operators whose structure was not known when the pattern was detected, so that
            they were taken as dense; empty if all were known, or if the pattern was given.
    Example:
        >>> pattern = SparsityPattern.from_dense(torch.eye(3) + torch.eye(3).roll(1, 0))
        >>> pattern
        SparsityPattern(shape=(3, 3), nnz=6)
        >>> print(pattern)
        SparsityPattern(shape=(3, 3), nnz=6)
        ●⋅●
        ●●⋅
        ⋅●●
    """

    rows: Tensor
    cols: Tensor
    shape: tuple[int, int]
    unknown: tuple[str, ...] = ()

    @staticmethod
    def from_coo(
        rows: Any, cols: Any, shape: tuple[int, int], unknown: tuple[str, ...] = ()
    ) -> "SparsityPattern":
        """Pattern of entries in any order, duplicates allowed.

        Args:
            rows, cols: integer tensors (or sequences) of equal length: one entry each.
            shape: numbers of rows and columns.
            unknown: as the attribute.
        Raises:
            StructureError: rows and cols differ in length, or an entry is outside the shape.
        Example:
            >>> SparsityPattern.from_coo([0, 1, 1], [0, 1, 0], (2, 2))
            SparsityPattern(shape=(2, 2), nnz=3)
        """
        row, col = (torch.as_tensor(indices).cpu().long().reshape(-1) for indices in (rows, cols))
        height, width = shape = int(shape[0]), int(shape[1])
        if row.numel() != col.numel():
            raise StructureError(
                f"torchlayers: SparsityPattern: rows and cols must have one element per entry, got "
                f"{row.numel()} rows and {col.numel()} columns."
            )
        outside = (row < 0) | (row >= height) | (col < 0) | (col >= width)
        if outside.any():
            at = int(outside.nonzero()[0])
            raise StructureError(
                f"torchlayers: SparsityPattern: entry ({int(row[at])}, {int(col[at])}) is outside "
                f"the shape {shape}."
            )
        keys = row * width + col
        if not bool((keys[1:] > keys[:-1]).all()):
            keys = torch.unique(keys)
            row, col = keys.div(max(width, 1), rounding_mode="floor"), keys % max(width, 1)
        return SparsityPattern(row.contiguous(), col.contiguous(), shape, tuple(unknown))

    @staticmethod
    def from_dense(mask: Any) -> "SparsityPattern":
        """Pattern of the nonzero elements of a matrix (NaN counts as nonzero).

        Args:
            mask: tensor, array or nested sequence of two dimensions, of any dtype.
        Raises:
            StructureError: mask does not have two dimensions.
        Example:
            >>> SparsityPattern.from_dense([[1, 0], [1, 1]])
            SparsityPattern(shape=(2, 2), nnz=3)
        """
        dense = torch.as_tensor(mask)
        if dense.dim() != 2:
            raise StructureError(
                "torchlayers: SparsityPattern: a pattern is a matrix of two dimensions, got shape "
                f"{tuple(dense.shape)}. Flatten the outputs into rows and the inputs into columns."
            )
        rows, cols = dense.detach().cpu().nonzero(as_tuple=True)
        height, width = dense.shape
        return SparsityPattern(rows.contiguous(), cols.contiguous(), (height, width))

    @staticmethod
    def from_sparse(matrix: Any) -> "SparsityPattern":
        """Pattern of the stored entries of a sparse matrix, whatever their values.

        Args:
            matrix: a tensor of torch.sparse (COO, CSR, CSC, BSR or BSC), or a matrix or array of
                SciPy's.
        Raises:
            StructureError: it is neither, or does not have two dimensions.
        Example:
            >>> SparsityPattern.from_sparse(torch.eye(3).to_sparse())
            SparsityPattern(shape=(3, 3), nnz=3)
        """
        if isinstance(matrix, Tensor) and matrix.layout != torch.strided and matrix.dim() == 2:
            rows, cols = _coo_indices(matrix.detach())
            return SparsityPattern.from_coo(rows, cols, (matrix.shape[0], matrix.shape[1]))
        if hasattr(matrix, "tocoo") and len(matrix.shape) == 2:
            coo = matrix.tocoo()
            return SparsityPattern.from_coo(coo.row, coo.col, matrix.shape)
        raise StructureError(
            "torchlayers: SparsityPattern: expected a sparse matrix of torch.sparse or SciPy, of "
            f"two dimensions, got {type(matrix).__name__}."
        )

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self.rows.numel()

    @property
    def density(self) -> float:
        """Entries as a fraction of all elements; 0 for a matrix without elements."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def T(self) -> "SparsityPattern":
        """Pattern of the transposed matrix."""
        return SparsityPattern.from_coo(self.cols, self.rows, self.shape[::-1], self.unknown)

    @cached_property
    def indices(self) -> Tensor:
        """Rows and columns as COO's indices: of shape ``(2, nnz)``."""
        return torch.stack([self.rows, self.cols])

    @cached_property
    def row_starts(self) -> Tensor:
        """Where each row's entries start, and the last one's end: CSR's crow_indices."""
        return _starts(self.rows, self.shape[0])

    @cached_property
    def flat_indices(self) -> Tensor:
        """Where the entries are in the flattened matrix."""
        return self.rows * self.shape[1] + self.cols

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether the pattern is that of its transpose."""
        return self.shape[0] == self.shape[1] and self == self.T

    def issubset(self, other: "SparsityPattern") -> bool:
        """Whether every entry is an entry of the other pattern too.

        Raises:
            StructureError: the shapes differ.
        Example:
            >>> diagonal = SparsityPattern.from_dense(torch.eye(2))
            >>> diagonal.issubset(SparsityPattern.from_dense(torch.ones(2, 2)))
            True
        """
        self._require_same_shape(other, "issubset")
        return bool(torch.isin(self._keys(), other._keys(), assume_unique=True).all())

    def __or__(self, other: "SparsityPattern") -> "SparsityPattern":
        """Pattern of the entries of either.

        Raises:
            StructureError: the shapes differ.
        """
        if not isinstance(other, SparsityPattern):
            return NotImplemented
        self._require_same_shape(other, "|")
        return SparsityPattern.from_coo(
            torch.cat([self.rows, other.rows]),
            torch.cat([self.cols, other.cols]),
            self.shape,
            tuple(dict.fromkeys(self.unknown + other.unknown)),
        )

    def to_dense(self) -> Tensor:
        """Mask of the pattern's shape: True at its entries.

        Example:
            >>> SparsityPattern.from_coo([0], [1], (1, 2)).to_dense()
            tensor([[False,  True]])
        """
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[self.rows, self.cols] = True
        return mask

    def to_sparse(self, values: Tensor | None = None, layout: str = "coo") -> Tensor:
        """torch.sparse tensor with the pattern's entries.

        Args:
            values: of shape ``(nnz,)``, in the order of the entries; True for each by default.
                The result is on their device.
            layout: "coo" (coalesced) or "csr".
        Raises:
            ValueError: layout is neither.
        Example:
            >>> SparsityPattern.from_dense([[0, 1], [1, 0]]).to_sparse(torch.tensor([5.0, 6.0]))
            tensor(indices=tensor([[0, 1],
                                   [1, 0]]),
                   values=tensor([5., 6.]),
                   size=(2, 2), nnz=2, layout=torch.sparse_coo)
        """
        values = torch.ones(self.nnz, dtype=torch.bool) if values is None else values
        if layout == "coo":
            indices = self.indices.to(values.device)
            return _C.torch_coo_tensor(
                indices, values, self.shape, is_coalesced=True, check_invariants=False
            )
        if layout == "csr":
            starts, cols = self.row_starts.to(values.device), self.cols.to(values.device)
            return torch.sparse_csr_tensor(starts, cols, values, self.shape, check_invariants=False)
        raise ValueError(
            f"torchlayers: SparsityPattern: layout must be 'coo' or 'csr', got {layout!r}."
        )

    def _keys(self) -> Tensor:
        """One number per entry, in the order of the entries."""
        return self.rows * self.shape[1] + self.cols

    def _require_same_shape(self, other: "SparsityPattern", operation: str) -> None:
        if self.shape != other.shape:
            raise StructureError(
                f"torchlayers: SparsityPattern: {operation} needs patterns of one shape, got "
                f"{self.shape} and {other.shape}."
            )

    def __eq__(self, other: object) -> bool:
        """Whether both have the same shape and entries; unknown operators do not count."""
        if not isinstance(other, SparsityPattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and torch.equal(self.rows, other.rows)
            and torch.equal(self.cols, other.cols)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.nnz))

    def __repr__(self) -> str:
        unknown = f", unknown={self.unknown}" if self.unknown else ""
        return f"SparsityPattern(shape={self.shape}, nnz={self.nnz}{unknown})"

    def __str__(self) -> str:
        return "\n".join([repr(self), *draw(self)])


def as_pattern(pattern: PatternLike) -> SparsityPattern:
    """Pattern of what the user gave: a pattern, a mask, a torch.sparse tensor or SciPy's matrix.

    Raises:
        StructureError: it has not two dimensions.
    """
    if isinstance(pattern, SparsityPattern):
        return pattern
    is_sparse = isinstance(pattern, Tensor) and pattern.layout != torch.strided
    if is_sparse or hasattr(pattern, "tocoo"):
        return SparsityPattern.from_sparse(pattern)
    return SparsityPattern.from_dense(pattern)


def is_small(pattern: SparsityPattern) -> bool:
    """Whether a drawing shows each entry by a character of its own."""
    return pattern.shape[0] <= _MOST_ROWS and pattern.shape[1] <= _MOST_COLUMNS


def draw(pattern: SparsityPattern, marks: Sequence[str] | None = None) -> list[str]:
    """Lines of text with a dot for each entry, scaled down if the pattern is large.

    marks are characters for the entries of a small one, in their order.
    """
    height, width = pattern.shape
    if is_small(pattern):
        grid = [["⋅"] * width for _ in range(height)]
        for k, (row, col) in enumerate(
            zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True)
        ):
            grid[row][col] = "●" if marks is None else marks[k]
        return ["".join(line) for line in grid]
    # A braille character shows four rows and two columns.
    scale = max(height / (4 * _MOST_ROWS), width / (2 * _MOST_COLUMNS), 1.0)
    dots_high = -(-math.ceil(height / scale) // 4) * 4
    dots_wide = -(-math.ceil(width / scale) // 2) * 2
    rows = (pattern.rows / scale).long().clamp_(max=dots_high - 1)
    cols = (pattern.cols / scale).long().clamp_(max=dots_wide - 1)
    bits = torch.zeros(dots_high, dots_wide, dtype=torch.long)
    bits[rows, cols] = _BRAILLE[rows % 4, cols % 2]
    characters = bits.view(dots_high // 4, 4, dots_wide // 2, 2).sum(dim=(1, 3))
    return ["".join(chr(0x2800 + bit) for bit in line) for line in characters.tolist()]


def _starts(sorted_rows: Tensor, height: int) -> Tensor:
    counts = torch.bincount(sorted_rows, minlength=height)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _coo_indices(matrix: Tensor) -> Tensor:
    if matrix.layout == torch.sparse_coo:
        return matrix._indices()
    by_rows = matrix.layout in (torch.sparse_csr, torch.sparse_bsr)
    ends = matrix.crow_indices() if by_rows else matrix.ccol_indices()
    within = matrix.col_indices() if by_rows else matrix.row_indices()
    outer = torch.arange(ends.numel() - 1, device=ends.device).repeat_interleave(ends.diff())
    rows, cols = (outer, within) if by_rows else (within, outer)
    values = matrix.values()
    if values.dim() == 3:  # BSR, BSC: the indices are those of blocks
        high, wide = values.shape[1:]
        places = torch.arange(high * wide, device=ends.device)
        rows = (rows[:, None] * high + places.div(wide, rounding_mode="floor")).flatten()
        cols = (cols[:, None] * wide + places % wide).flatten()
    return torch.stack([rows, cols])
