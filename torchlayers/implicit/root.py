"""custom_root and custom_fixed_point: solutions of equations, differentiated through these."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.traced.layer_state import is_inside_python_layer
from torchlayers.control_flow.traced.transformed import (
    differentiable_positions,
    jvp_of,
    or_zeros,
    vjp_of,
)
from torchlayers.core import tracing_state
from torchlayers.core.function_checks import check_function
from torchlayers.implicit import nonlinear
from torchlayers.implicit.checks import (
    MISSING,
    Unknowns,
    refuse_with_decorator,
    warns_itself,
)
from torchlayers.implicit.closed_function import ClosedFunction, ClosedSolvers
from torchlayers.implicit.linear_system import JacobianMap, LinearSystem, default_solve
from torchlayers.implicit.python_layers import STEPS, refined
from torchlayers.implicit.undifferentiated import is_constant, solution
from torchlayers.remat.deferred import deferred


@tracing_state.skipped_while_tracing
def custom_root(
    f: Callable[..., Any],
    initial_guess: Any = MISSING,
    solve: Callable[..., Any] | None = None,
    tangent_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Any:
    """A solution x of ``f(x) = 0``, differentiated through the equation, not through the solver.

    Derivatives of every order and in both modes follow from the implicit function theorem: each
    solves linear systems with the Jacobian of f at the solution, or its transpose. They are taken
    with respect to the tensors that f captures, including parameters of modules. The iterations are
    not recorded, so memory does not grow with their number.

    Called without initial_guess, it is a decorator: see the second example.

    Args:
        f: takes a pytree of tensors like initial_guess, and returns one. With the decorator, it
            takes the further arguments of the decorated function too. It is deterministic, and
            runs once more at the solution.
        initial_guess: where to start: a tensor or a pytree of tensors. Not differentiated.
        solve: ``solve(f, initial_guess)`` returns the solution. It runs without being
            differentiated, and under vmap on one sample, so it may not read values (``.item()``,
            ``if``) there; ``torchlayers.while_loop`` works, with which each sample has its own
            iterations. By default :func:`torchlayers.implicit.solvers.newton`.
        tangent_solve: ``tangent_solve(g, y)`` solves ``g(x) = y`` for a linear function g: the
            Jacobian, or in reverse mode its transpose. So it must use the g that it is given. By
            default a direct solve for up to 128 unknowns, and
            :func:`torchlayers.implicit.solvers.gmres` for more.
        has_aux: solve returns ``(solution, aux)``.
    Returns:
        The solution, in the structure of initial_guess; with has_aux ``(solution, aux)``, where
        aux is a constant. As a decorator, a function of ``(initial_guess, *args)``.
    Raises:
        StructureError: f, solve or tangent_solve returned something unlike initial_guess.
        NotTensorError: initial_guess holds something other than floating-point or complex tensors.
        CallError: an argument is not a function.
        TransformError: f captures other tensors when it is called again.
    Warns:
        ConvergenceWarning: tangent_solve did not solve its system.
    Example:
        >>> def root(a):
        ...     return torchlayers.custom_root(lambda x: x**3 - a, torch.ones(()))
        >>> torchlayers.grad(root)(torch.tensor(8.0))
        tensor(0.0833)
        >>> @torchlayers.custom_root(lambda x, a: x**3 - a)
        ... def cube_root(x, a):
        ...     return torchlayers.fori_loop(0, 20, lambda i, x: x - (x - a / x**2) / 3, x)
        >>> torchlayers.vmap(torchlayers.grad(cube_root, argnums=1), (None, 0))(
        ...     torch.tensor(1.0), torch.tensor([1.0, 8.0])
        ... )
        tensor([0.3333, 0.0833])

    Source: jax.lax.custom_root; Blondel et al., "Efficient and modular implicit differentiation"
        (2022).
    """
    return _api(
        "custom_root", None, nonlinear.newton, f, initial_guess, solve, tangent_solve, has_aux
    )


@tracing_state.skipped_while_tracing
def custom_fixed_point(
    f: Callable[..., Any],
    initial_guess: Any = MISSING,
    solve: Callable[..., Any] | None = None,
    tangent_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Any:
    """A solution x of ``f(x) = x``, differentiated through the equation, not through the solver.

    As :func:`custom_root` for ``x - f(x)``, and with its errors.

    Args:
        f: takes a pytree of tensors like initial_guess, and returns one.
        initial_guess: where to start: a tensor or a pytree of tensors. Not differentiated.
        solve: ``solve(f, initial_guess)`` returns the solution. By default
            :func:`torchlayers.implicit.solvers.fixed_point`.
        tangent_solve: ``tangent_solve(g, y)`` solves ``g(x) = y``, where g is the linear function
            ``v - J v``, with the Jacobian J of f, or in reverse mode its transpose.
        has_aux: solve returns ``(solution, aux)``.
    Returns:
        The solution, in the structure of initial_guess; with has_aux ``(solution, aux)``. As a
        decorator, a function of ``(initial_guess, *args)``.
    Example:
        >>> def wave(a):  # cos(a x) = x
        ...     return torchlayers.custom_fixed_point(lambda x: torch.cos(a * x), torch.ones(()))
        >>> torchlayers.vmap(torchlayers.grad(wave))(torch.tensor([0.5, 1.0]))
        tensor([-0.3218, -0.2975])

    Source: jaxopt.implicit_diff.custom_fixed_point; Bai et al., "Deep equilibrium models" (2019).
    """
    return _api(
        "custom_fixed_point",
        _minus,
        nonlinear.fixed_point,
        f,
        initial_guess,
        solve,
        tangent_solve,
        has_aux,
    )


def _minus(x: Sequence[Tensor], fx: Sequence[Tensor]) -> list[Tensor]:
    return [a - b for a, b in zip(x, fx, strict=True)]


def _api(
    api: str,
    residual: Callable[..., Any] | None,
    default: Callable[..., Any],
    f: Callable[..., Any],
    initial_guess: Any,
    solve: Callable[..., Any] | None,
    tangent_solve: Callable[..., Any] | None,
    has_aux: bool,
) -> Any:
    check_function(api, "f", f)
    check_function(api, "tangent_solve", tangent_solve, optional=True)

    def root(f: Any, start: Any, solve: Any, tangent_solve: Any) -> Any:
        return differentiable_root(
            api, residual, f, start, solve, tangent_solve or default_solve, has_aux
        )

    if initial_guess is not MISSING:
        check_function(api, "solve", solve, optional=True)
        return root(f, initial_guess, solve or default, tangent_solve)
    refuse_with_decorator(api, solve=solve)

    def decorate(solver: Callable[..., Any]) -> Callable[..., Any]:
        check_function(api, "the decorated solver", solver)

        @wraps(solver)
        def solved(initial_guess: Any, *args: Any, **kwargs: Any) -> Any:
            return root(
                lambda x: f(x, *args, **kwargs),
                initial_guess,
                lambda _, x: solver(x, *args, **kwargs),
                tangent_solve,
            )

        return solved

    return decorate


def differentiable_root(
    api: str,
    residual: Callable[..., Any] | None,
    f: Callable[..., Any],
    initial_guess: Any,
    solve: Callable[..., Any],
    tangent_solve: Callable[..., Any],
    has_aux: bool,
    name: str = "initial_guess",
    symmetric: bool = False,
) -> Any:
    """The root of f, differentiated; of residual(x, f(x)), if residual is not None.

    name: what initial_guess is called in error messages.
    symmetric: whether the Jacobian is symmetric, as that of a gradient.
    """
    unknowns = Unknowns(api, name, initial_guess)

    def checked(x: Any) -> Any:
        return unknowns.put_in(unknowns.leaves_of("f", f(x)))

    function = checked if solve in (nonlinear.newton, nonlinear.fixed_point) else f
    x, aux = solution(lambda: unknowns.solved("solve", solve(function, initial_guess), has_aux))
    if is_inside_python_layer() or not is_constant():
        warns = warns_itself(tangent_solve)
        as_now, tangent_solve = deferred(f), deferred(tangent_solve)

        def equation(tensors: Sequence[Tensor]) -> list[Tensor]:
            result = unknowns.leaves_of("f", as_now(unknowns.put_in(tensors)))
            return result if residual is None else residual(tensors, result)

        if is_inside_python_layer():
            solved = unknowns.put_in(refined(api, equation, x, STEPS))
            return (solved, aux) if has_aux else solved
        closed = ClosedFunction(api, equation, x)
        solver = unknowns.solver("tangent_solve", tangent_solve, False)
        system = LinearSystem(
            api,
            JacobianMap(closed, len(x)),
            solver,
            solver,
            ClosedSolvers([tangent_solve]),
            warns,
            symmetric,
        )
        captured = [*closed.captured, *system.solvers.captured]
        x = [*_apply(system, closed, len(x), *x, *captured)]
    solved = unknowns.put_in(x)
    return (solved, aux) if has_aux else solved


class _RootFunction(torch.autograd.Function):
    """Takes a LinearSystem with the Jacobian of a function, the function, the number of tensors of
    x, its root x, and what the system depends on besides; returns x.

    f(x, t) = 0 for all t, so the tangents satisfy J dx = -df/dt dt. The cotangents of x give
    J^T u = g, and those of t are -(df/dt)^T u.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        system: LinearSystem, f: ClosedFunction, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.system, ctx.f, ctx.count, *tensors = inputs
        ctx.set_materialize_grads(False)
        saved = (*output, *tensors[ctx.count :])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        count, on = ctx.count, ctx.saved_tensors
        g = or_zeros(cotangents, range(count), on)
        u = ctx.system.transpose.solution(on, g)
        wanted = [*[False] * count, *ctx.needs_input_grad[3 + count :]]
        places = differentiable_positions(wanted, on)
        products = vjp_of(_function_of(ctx), on, places, [-cotangent for cotangent in u])
        gradients = dict(zip(places, products, strict=True))
        return None, None, None, *(gradients.get(i) for i in range(len(on)))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Any) -> Any:
        count, on = ctx.count, ctx.saved_tensors
        tangents_of_args = [*[None] * count, *tangents[count:]]
        places = differentiable_positions([t is not None for t in tangents_of_args], on)
        pushed = jvp_of(_function_of(ctx), on, places, [tangents_of_args[i] for i in places])[1]
        return tuple(ctx.system.solution(on, [-tangent for tangent in pushed]))


def _function_of(ctx: Any) -> Callable[..., Any]:
    """The function that is zero, of x and all that the system depends on."""
    rest = len(ctx.system.solvers.captured)
    return lambda tensors: ctx.f(tensors[: len(tensors) - rest])


_apply: Any = _RootFunction.apply
