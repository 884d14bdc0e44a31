"""custom_linear_solve: a linear solver, differentiated through the system that it solves."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from torch import Tensor

from torchlayers.control_flow.traced.layer_state import is_inside_python_layer
from torchlayers.core import tracing_state
from torchlayers.core.function_checks import check_function
from torchlayers.implicit.checks import (
    MISSING,
    Unknowns,
    refuse_with_decorator,
    warns_itself,
)
from torchlayers.implicit.closed_function import ClosedFunction, ClosedSolvers
from torchlayers.implicit.linear_system import GivenMap, LinearSystem, default_solve
from torchlayers.implicit.python_layers import refined
from torchlayers.implicit.undifferentiated import is_constant, solution
from torchlayers.remat.deferred import deferred

_API = "custom_linear_solve"


@tracing_state.skipped_while_tracing
def custom_linear_solve(
    matvec: Callable[..., Any],
    b: Any = MISSING,
    solve: Callable[..., Any] | None = None,
    transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The solution of ``matvec(x) = b``, differentiated through the system, not through the solver.

    Derivatives of every order and in both modes solve further systems with the same matrix or its
    transpose. They are taken with respect to b and to the tensors that matvec captures, including
    parameters of modules. Nothing that solve computes is saved.

    Called without b, it is a decorator: see the second example.

    Args:
        matvec: the linear function. It takes and returns a pytree of tensors like b. With the
            decorator, it takes the further arguments of the decorated function too.
        b: the right-hand side: a tensor or a pytree of tensors.
        solve: ``solve(matvec, b)`` returns the solution. It runs without being differentiated, and
            under vmap on one sample, so it may not read values (``.item()``, ``if``) there;
            ``torchlayers.while_loop`` works. By default a direct solve for up to 128 unknowns, and
            :func:`torchlayers.implicit.solvers.gmres` for more.
        transpose_solve: ``transpose_solve(vecmat, b)`` solves with the transposed matrix (the
            adjoint, if it is complex), which reverse mode needs. By default the default solver. If
            solve calls only the function that it is given, it can be passed here too.
        symmetric: whether the matrix is symmetric (Hermitian): then solve serves for both.
        has_aux: solve returns ``(solution, aux)``.
    Returns:
        The solution, in the structure of b; with has_aux ``(solution, aux)``, where aux is a
        constant. As a decorator, a function of ``(b, *args)``.
    Raises:
        StructureError: matvec or solve returned something unlike b.
        NotTensorError: b holds something other than floating-point or complex tensors.
        CallError: reverse mode needs transpose_solve; or an argument is missing or not callable.
        TransformError: matvec captures other tensors when it is called again.
    Warns:
        ConvergenceWarning: the solution of a system of a derivative does not solve it.
    Example:
        >>> A = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
        >>> def total(b, scale):
        ...     return torchlayers.custom_linear_solve(lambda x: scale * (A @ x), b).sum()
        >>> torchlayers.grad(total, (0, 1))(torch.tensor([2.0, 4.0]), torch.tensor(1.0))
        (tensor([0.5000, 0.1250]), tensor(-1.5000))
        >>> @torchlayers.custom_linear_solve(lambda x, scale: scale * (A @ x))
        ... def solved(b, scale):
        ...     return torch.linalg.solve(scale * A, b)
        >>> torchlayers.jacfwd(solved, argnums=1)(torch.ones(2), torch.tensor(1.0))
        tensor([-0.3750, -0.2500])

    Source: jax.lax.custom_linear_solve; Christianson, "Reverse accumulation and implicit
        functions" (1998).
    """
    check_function(_API, "matvec", matvec)
    if b is MISSING:
        refuse_with_decorator(_API, solve=solve)
        return partial(_decorate, matvec, transpose_solve, symmetric, has_aux)
    for name, function in (("solve", solve), ("transpose_solve", transpose_solve)):
        check_function(_API, name, function, optional=True)
    return _solve(matvec, b, solve, transpose_solve, symmetric, has_aux)


def _decorate(
    matvec: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None,
    symmetric: bool,
    has_aux: bool,
    solve: Callable[..., Any],
) -> Callable[..., Any]:
    check_function(_API, "the decorated solver", solve)

    @wraps(solve)
    def solved(b: Any, *args: Any, **kwargs: Any) -> Any:
        def solver(func: Callable[..., Any]) -> Callable[..., Any]:
            return lambda _, b: func(b, *args, **kwargs)

        return _solve(
            lambda x: matvec(x, *args, **kwargs),
            b,
            solver(solve),
            None if transpose_solve is None else solver(transpose_solve),
            symmetric,
            has_aux,
        )

    return solved


def _solve(
    matvec: Callable[..., Any],
    b: Any,
    solve: Callable[..., Any] | None,
    transpose_solve: Callable[..., Any] | None,
    symmetric: bool,
    has_aux: bool,
) -> Any:
    unknowns = Unknowns(_API, "b", b)

    def on_tensors(matvec: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        return unknowns.leaves_of("matvec", matvec(unknowns.put_in(tensors)))

    chosen = default_solve if solve is None else solve
    solver = unknowns.solver("solve", chosen, has_aux)
    x, aux = solution(solver, partial(on_tensors, matvec), unknowns.tensors)
    if is_inside_python_layer():

        def residual(x: Sequence[Tensor]) -> list[Tensor]:
            pairs = zip(on_tensors(matvec, x), unknowns.tensors, strict=True)
            return [ax - b for ax, b in pairs]

        x = refined(_API, residual, x, 1)
    elif not is_constant():
        warns = warns_itself(chosen)
        as_now, chosen = deferred(matvec), deferred(chosen)
        solver = unknowns.solver("solve", chosen, has_aux)
        back: Callable[..., Any] | None = None
        if transpose_solve is not None:
            transpose_solve = deferred(transpose_solve)
            back = unknowns.solver("transpose_solve", transpose_solve, has_aux)
        elif warns:
            back = solver
        closed = ClosedFunction(_API, partial(on_tensors, as_now), x)
        system = LinearSystem(
            _API,
            GivenMap(closed),
            solver,
            back,
            ClosedSolvers([chosen, transpose_solve]),
            warns,
            symmetric,
        )
        on = [*closed.captured, *system.solvers.captured]
        x = system.differentiable(on, unknowns.tensors, x)
    solved = unknowns.put_in(x)
    return (solved, aux) if has_aux else solved
