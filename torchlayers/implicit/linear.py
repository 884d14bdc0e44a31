"""linear_solve: linear systems by a matrix or a function, with what is known of it."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import CallError, StructureError, location
from torchlayers.core.function_checks import check_function
from torchlayers.implicit import krylov, structured
from torchlayers.implicit.checks import Unknowns
from torchlayers.implicit.convergence import (
    Vectors,
    magnitude,
    norm,
    relative_norm,
    warn_unless,
)
from torchlayers.implicit.krylov import DENSE_LIMIT, OnVector, Solved, Stopping
from torchlayers.implicit.linear_solve import custom_linear_solve
from torchlayers.implicit.lsmr import lsmr
from torchlayers.implicit.root import differentiable_root
from torchlayers.implicit.solution import Solution, Tolerance, raise_unless_converged
from torchlayers.transforms.vjp import vjp

TAGS = (
    "symmetric",
    "positive_definite",
    "diagonal",
    "tridiagonal",
    "lower_triangular",
    "upper_triangular",
)
_TRANSPOSED = {"lower_triangular": "upper_triangular", "upper_triangular": "lower_triangular"}
# Direct methods: of the whole matrix, and of products.
_OF_MATRIX = {
    "lu": structured.lu,
    "cholesky": structured.cholesky,
    "lower_triangular": structured.lower_triangular,
    "upper_triangular": structured.upper_triangular,
}
_OF_PRODUCTS = {"diagonal": structured.diagonal, "tridiagonal": structured.tridiagonal}
_ITERATIVE: dict[str, krylov.Method] = {
    "cg": krylov.cg,
    "bicgstab": krylov.bicgstab,
    "gmres": krylov.gmres,
}
_SQUARE = (*_OF_MATRIX, *_OF_PRODUCTS, *_ITERATIVE)
_RECTANGULAR = ("qr", "lsmr", "normal_cg")
_HINT = "Raise maxiter, precondition the system, or use another method."


@tracing_state.skipped_while_tracing
def linear_solve(
    A: Tensor | Callable[..., Any],
    b: Any,
    method: str | None = None,
    *,
    tags: str | Collection[str] = (),
    x0: Any = None,
    preconditioner: Tensor | Callable[..., Any] | None = None,
    tol: float | None = None,
    atol: float = 0.0,
    maxiter: int | None = None,
    throw: bool = False,
) -> Solution:
    """The solution of ``A x = b``, or for more equations than unknowns of least squares.

    Derivatives are those of :func:`torchlayers.custom_linear_solve`, by A and b, or by the tensors
    that a function A captures.

    Args:
        A: a matrix, or a linear function of pytrees. A function of fewer unknowns than equations
            needs x0.
        b: the right-hand side: a vector, or for a function a pytree of tensors.
        method: direct: "lu", "cholesky", "lower_triangular", "upper_triangular", "diagonal",
            "tridiagonal" (without pivoting: for matrices that are diagonally dominant or positive
            definite). By products: "cg", "bicgstab", "gmres". Least squares: "qr", "lsmr",
            "normal_cg" (conjugate gradients on the normal equations). By default what the tags
            allow; without a tag lu for matrices and up to 128 unknowns, gmres for more; for
            more equations qr or lsmr.
        tags: what is known of A, one or several: "symmetric" (Hermitian), "positive_definite",
            "diagonal", "tridiagonal", "lower_triangular", "upper_triangular". They are not checked.
        x0: where an iterative method starts; by default zero. Not differentiated.
        preconditioner: for the methods by products: a matrix or a linear function that is close to
            the inverse of A; for "cg" it is symmetric positive definite.
        tol, atol: an iterative method stops when the residual's norm is at most
            ``max(tol * norm(b), atol)``. By default eps ** 0.75 and 0; eps ** 0.5 gives no warning.
            For least squares the same of ``Aᵀ (b - A x)`` and ``Aᵀ b``.
        maxiter: the largest number of iterations. By default 10 for each unknown, at most 1000.
        throw: raise an error if it did not converge, in compiled functions too, instead of warning.
    Returns:
        A :class:`Solution`. The residual is ``norm(b - A x) / norm(b)``, and for least squares
        ``norm(Aᵀ (b - A x)) / norm(Aᵀ b)``. A singular system has the solution nan, or infinity.
    Raises:
        StructureError: the shapes of A and b do not fit, or there are more unknowns than
            equations.
        CallError: there is no such method or tag, or the method is not for such a system.
        CheckError: with throw, it did not converge.
        The errors of :func:`torchlayers.custom_linear_solve`.
    Warns:
        ConvergenceWarning: it did not converge. A compiled function doesn't warn.
    Example:
        >>> from torchlayers.implicit import linear_solve
        >>> A = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
        >>> b = torch.tensor([1.0, 2.0])
        >>> linear_solve(A, b, tags="positive_definite").value
        tensor([0.0909, 0.6364])
        >>> torchlayers.grad(lambda b: linear_solve(lambda x: A @ x, b, "cg").value.sum())(b)
        tensor([0.1818, 0.2727])

    Source: lineax.linear_solve; Fong and Saunders, "LSMR: an iterative algorithm for sparse
        least-squares problems" (2011).
    """
    api = "linear_solve"
    known = _checked_tags(tags)
    unknowns = Unknowns(api, "b", b)
    if isinstance(A, Tensor):
        matrix, function = _checked_matrix(A, unknowns), lambda v: A @ v
        columns = matrix.shape[1]
        like = x0 if x0 is not None else b if matrix.shape[0] == columns else b.new_zeros(columns)
    else:
        check_function(api, "A", A)
        matrix, function, like = None, A, b if x0 is None else x0
    of_x = Unknowns(api, "x0", like)
    rows, columns = (Vectors(side.tensors).join(side.tensors).numel() for side in (unknowns, of_x))
    if rows < columns:
        raise StructureError(
            f"torchlayers: linear_solve: there are {rows} equations for {columns} unknowns."
            f"{location()} For the shortest solution, solve A Aᵀ y = b; it is Aᵀ y."
        )
    is_square = rows == columns and (matrix is not None or unknowns.spec == of_x.spec)
    is_complex = any(x.is_complex() for x in (*unknowns.tensors, *of_x.tensors))
    if is_complex:  # as pairs of real numbers, of which the matrix has another structure
        known = known & {"symmetric", "positive_definite"}
    chosen = method or _default(known, is_square, matrix is not None or columns <= DENSE_LIMIT)
    square = ("lu", "cholesky", *_ITERATIVE) if is_complex else _SQUARE
    allowed = (*(square if is_square else ()), *_RECTANGULAR)
    if chosen not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise CallError(
            f"torchlayers: linear_solve: method must be one of {names} for {rows} equations of "
            f"{columns} unknowns; got {chosen!r}.{location()}"
        )
    if preconditioner is not None and chosen not in _ITERATIVE:
        raise CallError(
            f"torchlayers: linear_solve: method {chosen!r} takes no preconditioner; the methods "
            f"by products do: {', '.join(_ITERATIVE)}."
        )
    stopping = Stopping(tol, atol, maxiter)
    if chosen in _RECTANGULAR:
        solution = _least_squares(function, b, like, matrix, chosen, stopping, throw)
    else:
        is_symmetric = not known.isdisjoint(TAGS[:3]) or chosen in ("cg", "cholesky", "diagonal")
        apply = None if preconditioner is None else _as_function(preconditioner)
        solution = _square(
            function,
            b,
            x0,
            None if is_complex else matrix,
            chosen,
            stopping,
            throw,
            apply,
            is_symmetric,
        )
    if throw:
        raise_unless_converged(api, solution)
    return solution


def _checked_tags(tags: str | Collection[str]) -> frozenset[str]:
    known = frozenset([tags] if isinstance(tags, str) else tags)
    for tag in known:
        if tag not in TAGS:
            names = ", ".join(repr(name) for name in TAGS)
            raise CallError(
                f"torchlayers: linear_solve: tags are {names}; got {tag!r}.{location()}"
            )
    return known


def _checked_matrix(A: Tensor, b: Unknowns) -> Tensor:
    vector = b.tensors[0]
    if A.dim() != 2 or len(b.tensors) > 1 or vector.dim() != 1 or A.shape[0] != vector.shape[0]:
        shapes = ", ".join(str(tuple(x.shape)) for x in b.tensors)
        raise StructureError(
            f"torchlayers: linear_solve: A must be a matrix with a row for each entry of the "
            f"vector b; got shape {tuple(A.shape)}, and for b {shapes}.{location()} For "
            "batches and for several right-hand sides, call it under vmap."
        )
    return A


def _default(tags: frozenset[str], is_square: bool, is_dense: bool) -> str:
    if not is_square:
        return "qr" if is_dense else "lsmr"
    for tag in TAGS[2:]:
        if tag in tags:
            return tag
    if "positive_definite" in tags:
        return "cholesky" if is_dense else "cg"
    return "lu" if is_dense else "gmres"


def _as_function(preconditioner: Tensor | Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(preconditioner, Tensor):
        return lambda v: preconditioner @ v
    check_function("linear_solve", "preconditioner", preconditioner)
    return preconditioner


def _square(
    function: Callable[..., Any],
    b: Any,
    x0: Any,
    matrix: Tensor | None,
    method: str,
    stopping: Stopping,
    throw: bool,
    precondition: Callable[..., Any] | None,
    is_symmetric: bool,
) -> Solution:
    unknowns = Unknowns("linear_solve", "b", b)
    form = Vectors(unknowns.tensors)

    def on_vector(name: str, function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        return lambda v: form.join(
            unknowns.leaves_of(name, function(unknowns.put_in(form.split(v))))
        )

    def solver(transposed: bool) -> Callable[[Callable[..., Any], Any], tuple[Any, Any]]:
        name, of_matrix, apply = method, matrix, precondition
        if transposed:
            name = _TRANSPOSED.get(method, method)
            of_matrix = None if matrix is None else matrix.mT
            apply = None if precondition is None else _adjoint(precondition, b)
        start = None if x0 is None or transposed else form.join(unknowns.leaves_of("x0", x0))

        def solve(matvec: Callable[..., Any], b: Any) -> tuple[Any, Any]:
            product = on_vector("A", matvec)
            rhs = form.join(unknowns.leaves_of("b", b))
            conditioned = None if apply is None else on_vector("preconditioner", apply)
            if name in _ITERATIVE:
                iterative = _conditioned(name, conditioned)
                solved = krylov.solve_vector(iterative, product, rhs, start, stopping, form.eps)
            else:
                solved = _directly(name, product, rhs, of_matrix, form.eps)
            x = unknowns.put_in(form.split(solved.x))
            return x, _judged(solved, stopping, throw)

        return solve

    value, aux = custom_linear_solve(
        function, b, solver(False), solver(True), is_symmetric, has_aux=True
    )
    return Solution(value, *aux)


def _judged(solved: Solved, stopping: Stopping, throw: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not throw:
        warn_unless(solved.converged, "linear_solve", solved.residual, stopping.tol, _HINT)
    return solved.converged, solved.iterations, solved.residual


def _conditioned(name: str, precondition: OnVector | None) -> krylov.Method:
    if precondition is None:
        return _ITERATIVE[name]
    if name == "cg":
        return partial(krylov.cg, precondition=precondition)
    return krylov.preconditioned(_ITERATIVE[name], precondition)


def _directly(
    name: str, product: OnVector, rhs: Tensor, matrix: Tensor | None, eps: float
) -> Solved:
    if name in _OF_MATRIX:
        entries = krylov.matrix_of(product, rhs) if matrix is None else matrix.to(rhs.dtype)
        x = _OF_MATRIX[name](entries, rhs)
    else:
        x = _OF_PRODUCTS[name](product, rhs)
    residual = relative_norm(rhs - product(x), rhs)
    # The residual of an ill-conditioned system is as large as x allows.
    return Solved(x, krylov.no_iterations(rhs), residual, residual <= eps**0.25)


def _adjoint(function: Callable[..., Any], like: Any) -> Callable[..., Any]:
    zeros = pytree.map_tensors(torch.zeros_like, like)
    return lambda v: vjp(function, zeros)[1](v)[0]


def _least_squares(
    function: Callable[..., Any],
    b: Any,
    like: Any,
    matrix: Tensor | None,
    method: str,
    stopping: Stopping,
    throw: bool,
) -> Solution:
    """Solves A^T A x = A^T b, but for x itself by A, whose condition number is not squared."""
    api = "linear_solve"
    of_b, of_x = Unknowns(api, "b", b), Unknowns(api, "x0", like)
    form_b, form = Vectors(of_b.tensors), Vectors(of_x.tensors)
    back = _adjoint(function, like)

    def forth(v: Tensor) -> Tensor:
        return form_b.join(of_b.leaves_of("A", function(of_x.put_in(form.split(v)))))

    def transposed(v: Tensor) -> Tensor:
        return form.join(of_x.leaves_of("A", back(of_b.put_in(form_b.split(v)))))

    def equation(x: Any) -> Any:
        difference = pytree.map_leaves(torch.sub, function(x), b)
        return back(difference)

    def entries(like: Tensor) -> Tensor:
        if matrix is None or matrix.is_complex():
            return krylov.matrix_of(forth, like)
        return matrix.to(like.dtype)

    def solve(_: Any, __: Any) -> tuple[Any, Any]:
        rhs = form_b.join(of_b.tensors)
        scale = magnitude(rhs)
        rhs = rhs / scale
        start = form.join(of_x.tensors)
        normal = transposed(rhs)
        limit = stopping.limit(start.shape[0])
        iterations = krylov.no_iterations(rhs)
        scaled = stopping._replace(atol=stopping.atol / scale)
        bound = scaled.bound(normal, form.eps)
        if method == "qr":
            x = structured.least_squares(entries(start), rhs)
        elif method == "lsmr":
            from_start = rhs - forth(start / scale)
            x, iterations = lsmr(forth, transposed, from_start, bound, limit)
            x = x + start / scale
        else:
            x, iterations = krylov.cg(
                lambda v: transposed(forth(v)), normal, start / scale, bound, limit
            )
        difference = transposed(rhs - forth(x))
        residual = relative_norm(difference, normal)
        accepted = form.eps**0.25 if method == "qr" else Tolerance(stopping.tol, form.eps).accepted
        bound = 1.01 * scaled._replace(tol=accepted).bound(normal, form.eps)
        converged = (norm(difference) <= bound) & residual.isfinite()
        solved = Solved(scale * x, iterations, residual, converged)
        return of_x.put_in(form.split(solved.x)), _judged(solved, stopping, throw)

    def tangent_solve(matvec: Callable[..., Any], y: Any) -> Any:
        if method != "qr":
            return krylov.solve("linear_solve", krylov.cg, matvec, y, None, stopping)
        rhs = form.join(of_x.leaves_of("b", y))
        return of_x.put_in(form.split(structured.normal(entries(rhs), rhs)))

    value, aux = differentiable_root(
        api, None, equation, like, solve, tangent_solve, True, "x0", True
    )
    return Solution(value, *aux)
