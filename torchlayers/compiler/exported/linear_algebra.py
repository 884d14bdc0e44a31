"""Linear algebra as elementwise operators and products, for ONNX, which has none.

The loops over columns are unrolled, so matrices may have at most as many as LARGEST. What torch
saves of a solution for its derivatives, the LU factorization, is the matrix itself here, with which
linalg_lu_solve solves again.
"""

from typing import Any

import torch
from torch import Tensor

LARGEST = 32  # a graph of some 20 operators for each column


def linear_solve(
    matrix: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> Any:
    """aten._linalg_solve_ex."""
    if not _is_small(matrix):
        return NotImplemented
    is_vector = b.dim() == matrix.dim() - 1 and b.shape == matrix.shape[:-1]
    saved = matrix.clone()
    if not left:
        matrix, b = matrix.mT, b if is_vector else b.mT
    columns = b.unsqueeze(-1) if is_vector else b
    solution = _eliminate(matrix, columns)
    solution = solution.squeeze(-1) if is_vector else solution if left else solution.mT
    pivots = matrix.new_zeros(matrix.shape[:-1], dtype=torch.int32)
    return solution, saved, pivots, matrix.new_zeros(matrix.shape[:-2], dtype=torch.int32)


def solve_again(
    saved: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Any:
    """aten.linalg_lu_solve, of what :func:`linear_solve` saves."""
    if not _is_small(saved):
        return NotImplemented
    matrix = saved.mT if adjoint else saved
    return _eliminate(matrix, b) if left else _eliminate(matrix.mT, b.mT).mT


def inverse(matrix: Tensor, *, check_errors: bool = False) -> Any:
    """aten.linalg_inv_ex."""
    if not _is_small(matrix):
        return NotImplemented
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    info = matrix.new_zeros(matrix.shape[:-2], dtype=torch.int32)
    return _eliminate(matrix, identity.expand(matrix.shape)), info


def cholesky(matrix: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """aten.linalg_cholesky_ex, column by column."""
    if not _is_small(matrix):
        return NotImplemented
    size = matrix.shape[-1]
    places = torch.arange(size, device=matrix.device)
    rest, columns = matrix, []
    for k in range(size):
        column = rest[..., :, k] / rest[..., k, k].sqrt().unsqueeze(-1)
        column = torch.where(places >= k, column, 0.0)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    lower = torch.stack(columns, -1)
    info = matrix.new_zeros(matrix.shape[:-2], dtype=torch.int32)
    return (lower.mT if upper else lower), info


def triangular_solve(
    matrix: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """aten.linalg_solve_triangular, by substitution."""
    if not _is_small(matrix):
        return NotImplemented
    if not left:
        return triangular_solve(matrix.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    size = matrix.shape[-1]
    rows: dict[int, Tensor] = {}
    for k in reversed(range(size)) if upper else range(size):
        row = b[..., k, :]
        for i, known in rows.items():
            row = row - matrix[..., k, i].unsqueeze(-1) * known
        rows[k] = row if unitriangular else row / matrix[..., k, k].unsqueeze(-1)
    return torch.stack([rows[k] for k in range(size)], -2)


def determinant(matrix: Tensor) -> Any:
    """aten._linalg_det."""
    if not _is_small(matrix):
        return NotImplemented
    result, saved = matrix.new_ones(matrix.shape[:-2]), matrix.clone()
    places = torch.arange(matrix.shape[-1], device=matrix.device)
    for k in range(matrix.shape[-1]):
        matrix, is_swapped = _with_pivot(matrix, k, places)
        pivot = matrix[..., k, k]
        result = result * torch.where(is_swapped, -pivot, pivot)
        factors = torch.where(places > k, matrix[..., :, k] / pivot.unsqueeze(-1), 0.0)
        matrix = matrix - factors.unsqueeze(-1) * matrix[..., k, :].unsqueeze(-2)
    pivots = matrix.new_zeros(matrix.shape[:-1], dtype=torch.int32)
    return result, saved, pivots


def _is_small(matrix: Tensor) -> bool:
    size = matrix.shape[-1]
    return isinstance(size, int) and size <= LARGEST and not matrix.is_complex()


def _eliminate(matrix: Tensor, columns: Tensor) -> Tensor:
    """Solves by elimination of Gauss and Jordan, with the largest pivot of each column."""
    size = matrix.shape[-1]
    places = torch.arange(size, device=matrix.device)
    batch = torch.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    sides = (matrix.expand(*batch, size, size), columns.expand(*batch, size, columns.shape[-1]))
    rows = torch.cat(sides, -1)
    for k in range(size):
        rows, _ = _with_pivot(rows, k, places)
        row = rows[..., k, :] / rows[..., k, k].unsqueeze(-1)
        factors = torch.where(places == k, 0.0, rows[..., :, k])
        rows = rows - factors.unsqueeze(-1) * row.unsqueeze(-2)
        rows = torch.where((places == k).unsqueeze(-1), row.unsqueeze(-2), rows)
    return rows[..., size:]


def _with_pivot(rows: Tensor, k: int, places: Tensor) -> tuple[Tensor, Tensor]:
    """Exchanges row k with the one below that has the largest element in column k."""
    below = torch.where(places >= k, rows[..., :, k].abs(), -1.0)
    pivot = below.argmax(-1, keepdim=True)
    order = torch.where(places == k, pivot, torch.where(places == pivot, k, places))
    index = order.unsqueeze(-1).expand(*order.shape, rows.shape[-1])
    return rows.gather(-2, index), (pivot != k).squeeze(-1)
