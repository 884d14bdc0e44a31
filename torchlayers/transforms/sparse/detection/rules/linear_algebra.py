"""Linear algebra: per matrix of a batch, results depend on the whole matrix."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, union, union_over
from torchlayers.transforms.sparse.detection.layer import Call, rule


@rule(
    aten._linalg_det,
    aten._linalg_eigh,
    aten._linalg_slogdet,
    aten._linalg_svd,
    aten.cholesky,
    aten.cholesky_inverse,
    aten.linalg_cholesky_ex,
    aten.linalg_eig,
    aten.linalg_inv_ex,
    aten.linalg_ldl_factor_ex,
    aten.linalg_lu,
    aten.linalg_lu_factor_ex,
    aten.linalg_matrix_exp,
    aten.linalg_pinv.atol_rtol_tensor,
    aten.linalg_qr,
    aten._linalg_eigvals,
    aten.geqrf,
)
def of_matrices(call: Call) -> Any:
    """Each result of a matrix depends on the whole matrix."""
    (sets, *_) = call.parts("A" if "A" in call.arguments else "self")
    whole = union_over(sets, [-2, -1])
    batch = whole.ids.dim()

    def of_result(value: Tensor) -> IndexSets | None:
        if value.numel() == 0 or value.shape[:batch] != whole.shape:
            return None
        shape = [*whole.shape, *[1] * (value.dim() - batch)]
        return whole.reshape(shape).expand(value.shape)

    if isinstance(call.value, Tensor):
        only = of_result(call.value)
        if only is not None and call.op.overloadpacket == aten.cholesky:
            return _triangle(only, call["upper"])
        return only
    found = [of_result(value) for value in call.value]
    packet = call.op.overloadpacket
    first = found[0]
    if packet == aten._linalg_slogdet and not call["A"].is_complex() and first is not None:
        found[0] = None if call.layer.is_local else call.layer.marked(first)
    if packet == aten.linalg_lu:
        below, above = found[1], found[2]
        found[1] = None if below is None else below.moved(lambda ids: ids.tril(-1))
        found[2] = None if above is None else _triangle(above, True)
    if packet == aten.linalg_cholesky_ex and first is not None:
        found[0] = _triangle(first, call["upper"])
    return found


def _triangle(sets: IndexSets, is_upper: bool) -> IndexSets:
    return sets.moved(torch.triu if is_upper else torch.tril)


@rule(aten._linalg_solve_ex)
def solve_ex(call: Call) -> Any:
    result, *others = call.value
    vector = _is_vector(call["A"], call["B"])
    sets = _solution(call, "A", "B", call["left"], vector, result.shape)
    own = call.sets("A")
    whole = None if own is None else union_over(own, [-2, -1])

    def of_other(value: Tensor) -> IndexSets | None:
        if whole is None or value.shape[: whole.ids.dim()] != whole.shape:
            return None
        shape = [*whole.shape, *[1] * (value.dim() - whole.ids.dim())]
        return whole.reshape(shape).expand(value.shape)

    return sets, *map(of_other, others)


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


@rule(aten.triangular_solve)
def triangular_solve(call: Call) -> Any:
    solved, copied = call.value
    sets = _solution(call, "A", "self", True, False, solved.shape)
    own = call.sets("A")
    return sets, None if own is None else own.expand(copied.shape)
