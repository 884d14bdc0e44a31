"""spsolve: SciPy's direct solver of sparse systems, on the host."""

import importlib
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.callbacks import pure_callback
from torchlayers.core.errors import StructureError, location
from torchlayers.implicit.linear_solve import custom_linear_solve


def spsolve(values: Tensor, columns: Tensor, row_starts: Tensor, b: Tensor) -> Any:
    """Solves a sparse system directly, by SciPy's SuperLU on the host.

    The matrix is in compressed rows: for a sparse tensor A of that layout ``A.values()``,
    ``A.col_indices()`` and ``A.crow_indices()``. Derivatives are those of
    :func:`torchlayers.custom_linear_solve`, by the values and b, and have the matrix's pattern.
    Under vmap, each sample is factored by itself.

    Args:
        values: the entries, row by row.
        columns: the column of each entry.
        row_starts: where each row starts in values, and at its end their number.
        b: the right-hand side, a vector.
    Returns:
        The solution; inf or nan for a singular matrix.
    Raises:
        StructureError: the shapes do not fit.
        ImportError: SciPy is not installed.
    Warns:
        scipy.sparse.linalg.MatrixRankWarning: the matrix is singular.
    Example:
        >>> columns, row_starts = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 3])
        >>> def second(values):  # of [[4, 0], [1, 2]] x = [8, 6]
        ...     b = torch.tensor([8.0, 6.0])
        ...     return torchlayers.implicit.solvers.spsolve(values, columns, row_starts, b)[1]
        >>> values = torch.tensor([4.0, 1.0, 2.0])
        >>> second(values), torchlayers.grad(second)(values)
        (tensor(2.), tensor([ 0.2500, -1.0000, -1.0000]))

    Source: scipy.sparse.linalg.spsolve; jax.experimental.sparse.linalg.spsolve.
    """
    n = b.shape[0] if b.dim() == 1 else -1
    if row_starts.shape != (n + 1,) or values.shape != columns.shape or values.dim() != 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in (values, columns, row_starts, b))
        raise StructureError(
            "torchlayers: spsolve: values, columns, row_starts and b must be vectors, of which the "
            f"first two are of one length and the third is longer than b by one; got {shapes}."
            f"{location()} For batches, call it under vmap."
        )
    entries = torch.arange(values.shape[0], device=values.device)
    rows = torch.searchsorted(row_starts, entries, right=True) - 1
    pattern = columns, row_starts

    def matvec(v: Tensor) -> Tensor:
        return torch.zeros_like(v).index_add(0, rows, values * v.index_select(0, columns))

    def solve(_: Any, b: Tensor) -> Any:
        return pure_callback(_solved, b, values.detach(), *pattern, b)

    def transpose_solve(_: Any, b: Tensor) -> Any:
        return pure_callback(_solved, b, values.detach(), *pattern, b, transpose=True)

    return custom_linear_solve(matvec, b, solve, transpose_solve)


def _solved(
    values: Tensor, columns: Tensor, row_starts: Tensor, b: Tensor, transpose: bool = False
) -> Any:
    sparse, linalg = (importlib.import_module(f"scipy.sparse{end}") for end in ("", ".linalg"))
    n = b.shape[0]
    parts = values.numpy(force=True), columns.numpy(force=True), row_starts.numpy(force=True)
    matrix = sparse.csr_array(parts, shape=(n, n)).tocsc()
    if transpose:
        matrix = matrix.conj().T.tocsc()
    solution = torch.from_numpy(linalg.spsolve(matrix, b.numpy(force=True)))
    return solution.to(b.device, b.dtype)
