"""What torch.distributions requires of matrices, checked for samples of vmap without a branch.

torch looks at the values of a matrix only if it is symmetric: ``if not symmetric.all(): ...``. Of
samples that differ there is no such number. Both checks together need none.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C


def _is_symmetric(matrix: Tensor) -> Tensor:
    """As torch.isclose says, which has no batching rule."""
    difference = (matrix - matrix.mT).abs()
    return (difference <= 1e-6 + 1e-5 * matrix.mT.abs()).all(-2).all(-1)


def _is_definite(matrix: Tensor) -> Tensor:
    is_definite: Tensor = torch.linalg.cholesky_ex(matrix).info.eq(0)
    return is_definite


def _is_semidefinite(matrix: Tensor) -> Tensor:
    is_semidefinite: Tensor = torch.linalg.eigvalsh(matrix).ge(0).all(-1)
    return is_semidefinite


def _check_of(of_symmetric: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    def check_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
        def check(self: Any, value: Tensor) -> Any:
            if _C.top() is None or value.shape[-1] != value.shape[-2]:
                return torchs(self, value)
            return _is_symmetric(value) & of_symmetric(value)

        return check

    return check_of


definite_check_of = _check_of(_is_definite)
semidefinite_check_of = _check_of(_is_semidefinite)
