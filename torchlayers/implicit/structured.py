"""Direct solvers of linear systems on single real vectors, by what is known of the matrix.

Those that need all of the matrix take it; for a diagonal or three, products tell what they are. A
system that has no solution gets nan, for each sample by itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torchlayers.transforms.vmap import vmap

OnVector = Callable[[Tensor], Tensor]


def lu(matrix: Tensor, b: Tensor) -> Tensor:
    x, failed = torch.linalg.solve_ex(matrix, b)
    return torch.where(failed == 0, x, torch.nan)


def cholesky(matrix: Tensor, b: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    x: Tensor = torch.cholesky_solve(b[:, None], factor)[:, 0]
    return torch.where(failed == 0, x, torch.nan)


def lower_triangular(matrix: Tensor, b: Tensor) -> Tensor:
    x: Tensor = torch.linalg.solve_triangular(matrix, b[:, None], upper=False)[:, 0]
    return _or_nan(x)


def upper_triangular(matrix: Tensor, b: Tensor) -> Tensor:
    x: Tensor = torch.linalg.solve_triangular(matrix, b[:, None], upper=True)[:, 0]
    return _or_nan(x)


def _or_nan(x: Tensor) -> Tensor:
    return torch.where(x.isfinite().all(), x, torch.nan)


def diagonal(matvec: OnVector, b: Tensor) -> Tensor:
    return _or_nan(b / matvec(torch.ones_like(b)))


def tridiagonal(matvec: OnVector, b: Tensor) -> Tensor:
    """Parallel cyclic reduction, of log2(n) steps over all rows, and one step of refinement.

    It does not pivot: the matrix has to be diagonally dominant, or positive definite.
    """
    index = torch.arange(b.shape[0], device=b.device)
    # Columns three apart do not meet in a row.
    probes = torch.stack([(index % 3 == i).to(b.dtype) for i in range(3)])
    products = vmap(matvec)(probes)

    def entries(offset: int) -> Tensor:
        column = index + offset
        is_inside = (column >= 0) & (column < b.shape[0])
        entry: Tensor = products.gather(0, (column % 3)[None])[0]
        return torch.where(is_inside, entry, 0.0)

    below, middle, above = entries(-1), entries(0), entries(1)
    x = _cyclic_reduction(below, middle, above, b)
    return x + _cyclic_reduction(below, middle, above, b - matvec(x))


def _cyclic_reduction(below: Tensor, middle: Tensor, above: Tensor, b: Tensor) -> Tensor:
    """Each step takes from every row multiples of those a distance before and after it, which then
    is twice as far from its neighbours (Hockney 1965)."""
    n, distance = b.shape[0], 1
    while distance < n:
        of_before = -below / _shift(middle, distance, 1.0)
        of_after = -above / _shift(middle, -distance, 1.0)
        middle, b, below, above = (
            middle
            + of_before * _shift(above, distance, 0.0)
            + of_after * _shift(below, -distance, 0.0),
            b + of_before * _shift(b, distance, 0.0) + of_after * _shift(b, -distance, 0.0),
            of_before * _shift(below, distance, 0.0),
            of_after * _shift(above, -distance, 0.0),
        )
        distance *= 2
    return b / middle


def _shift(x: Tensor, by: int, value: float) -> Tensor:
    """Each entry is the one `by` places before, or the value where there is none."""
    n = x.shape[0]
    filled = x.new_full((min(abs(by), n),), value)
    return torch.cat([filled, x[:-by]]) if by > 0 else torch.cat([x[-by:], filled])


def least_squares(matrix: Tensor, b: Tensor) -> Tensor:
    """Minimizes |matrix x - b|, for a tall matrix of full rank."""
    Q, R = torch.linalg.qr(matrix)
    x: Tensor = torch.linalg.solve_triangular(R, (Q.mT @ b)[:, None], upper=True)[:, 0]
    return _or_nan(x)


def normal(matrix: Tensor, b: Tensor) -> Tensor:
    """Solves ``matrix^T matrix x = b``, for a tall matrix of full rank, without squaring it."""
    R = triangle(matrix)
    y = torch.linalg.solve_triangular(R.mT, b[:, None], upper=False)
    x: Tensor = torch.linalg.solve_triangular(R, y, upper=True)[:, 0]
    return _or_nan(x)


def triangle(matrix: Tensor) -> Tensor:
    """R of the QR decomposition of the matrix."""
    # With mode="r", vmap of vmap ends in an error; and of geqrf, inductor assumes other strides.
    R: Tensor = torch.linalg.qr(matrix)[1]
    return R
