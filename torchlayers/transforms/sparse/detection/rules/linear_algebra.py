"""Linear algebra: per matrix of a batch, results depend on the whole matrix."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, union, union_over
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.along import of_matrices, whole_matrix


@rule(aten._linalg_slogdet)
def slogdet(call: Call) -> Any:
    """The sign of a real matrix's determinant has no derivative."""
    sign, *others = of_matrices(call)
    if not call["A"].is_complex() and sign is not None:
        sign = None if call.layer.is_local else call.layer.marked(sign)
    return sign, *others


@rule(aten.linalg_lu)
def lu(call: Call) -> Any:
    permutation, lower, upper = of_matrices(call)
    lower = None if lower is None else lower.moved(lambda ids: ids.tril(-1))
    return permutation, lower, None if upper is None else _triangle(upper, True)


@rule(aten.cholesky, aten.linalg_cholesky_ex)
def cholesky(call: Call) -> Any:
    results = of_matrices(call)
    first, *others = [results] if isinstance(call.value, Tensor) else results
    first = None if first is None else _triangle(first, call["upper"])
    return first if isinstance(call.value, Tensor) else (first, *others)


def _triangle(sets: IndexSets, is_upper: bool) -> IndexSets:
    return sets.moved(torch.triu if is_upper else torch.tril)


@rule(aten._linalg_solve_ex)
def solve_ex(call: Call) -> Any:
    result, *others = call.value
    vector = _is_vector(call["A"], call["B"])
    sets = _solution(call, "A", "B", call["left"], vector, result.shape)
    if call.sets("A") is None:
        return sets, *[None] * len(others)
    return sets, *(whole_matrix(call, value.shape) for value in others)


def _is_vector(matrix: Tensor, right: Tensor) -> bool:
    return right.dim() == 1 or (
        matrix.dim() - 1 == right.dim() and matrix.shape[:-1] == right.shape
    )


def _solution(
    call: Call, matrix: str, right: str, is_left: bool, is_vector: bool, shape: torch.Size
) -> IndexSets:
    """Column j of a solution depends on the matrix and on column j of the right-hand side."""
    parts = []
    for name in (matrix, "pivots", "LU", "LD"):
        if (sets := call.sets(name)) is not None:
            if name == "pivots":
                parts.append(union_over(sets, [-1], keepdim=True).moved(lambda i: i.unsqueeze(-1)))
            else:
                parts.append(union_over(sets, [-2, -1], keepdim=True))
            if is_vector:
                parts[-1] = parts[-1].moved(lambda ids: ids.squeeze(-1))
    if (sets := call.sets(right)) is not None:
        along = -1 if is_vector or not is_left else -2
        parts.append(union_over(sets, [along], keepdim=True))
    return union(parts, shape)


@rule(aten.linalg_solve_triangular)
def solve_triangular(call: Call) -> IndexSets | None:
    return _solution(call, "self", "B", call["left"], False, call.shape)


@rule(aten.cholesky_solve, aten._cholesky_solve_helper)
def cholesky_solve(call: Call) -> IndexSets | None:
    matrix = "input2" if "input2" in call.arguments else "A"
    return _solution(call, matrix, "self", True, False, call.shape)


@rule(aten.linalg_lu_solve)
def lu_solve(call: Call) -> IndexSets | None:
    return _solution(call, "none", "B", call["left"], False, call.shape)


@rule(aten.linalg_ldl_solve)
def ldl_solve(call: Call) -> IndexSets | None:
    return _solution(call, "none", "B", True, False, call.shape)
