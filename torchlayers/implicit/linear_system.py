"""Linear systems A(t) x = b whose solution is differentiated with respect to b and to the tensors t
that A depends on.

NOTE [Derivatives of a solution]
x solves A x = b, so a tangent solves A dx = db - dA x, and the cotangents of x give
A^T u = g, db = u, dA = -u x^T. Both are linear systems of the same kind, which this module solves
in turn. So derivatives of every order and in both modes come from one rule, and the solver itself
is never differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchlayers.control_flow.traced.dispatch import any_recorded
from torchlayers.control_flow.traced.transformed import (
    differentiable_positions,
    jvp_of,
    or_zeros,
    vjp_of,
)
from torchlayers.core.errors import CallError
from torchlayers.core.torch_private import torch_c
from torchlayers.implicit import krylov
from torchlayers.implicit.checks import WARNING_SOLVERS
from torchlayers.implicit.closed_function import ClosedSolvers
from torchlayers.implicit.convergence import Vectors, relative_norm, warn_unless
from torchlayers.implicit.undifferentiated import is_constant, solution
from torchlayers.transforms.vjp import vjp

Tensors = Sequence[Tensor]
OnTensors = Callable[[Tensors], list[Tensor]]


class LinearMap(Protocol):
    """A linear map from lists of tensors to lists of tensors that depends on other tensors."""

    def __call__(self, on: Tensors, v: Tensors) -> list[Tensor]:
        """Applies the map to v. Differentiable with respect to all tensors."""

    def place(self, on: Tensors, like: Tensors) -> OnTensors:
        """Returns the map for many calls, undifferentiated."""

    @property
    def transpose(self) -> "LinearMap": ...


class GivenMap:
    """A map given as a function that takes `count` tensors, and then those that it depends on."""

    def __init__(self, func: OnTensors) -> None:
        self.func = func

    def __call__(self, on: Tensors, v: Tensors) -> list[Tensor]:
        return self.func([*v, *on])

    def place(self, on: Tensors, like: Tensors) -> OnTensors:
        return lambda v: self(on, v)

    @property  # not cached: a cycle would keep tensors alive
    def transpose(self) -> LinearMap:
        return TransposedMap(self)


class TransposedMap:
    def __init__(self, transpose: LinearMap) -> None:
        self.transpose = transpose

    def __call__(self, on: Tensors, v: Tensors) -> list[Tensor]:
        return self._pull(on, v)(v)

    def place(self, on: Tensors, like: Tensors) -> OnTensors:
        return (lambda v: self(on, v)) if any_recorded(*on, *like) else self._pull(on, like)

    def _pull(self, on: Tensors, like: Tensors) -> OnTensors:
        zeros = [torch.zeros_like(x) for x in like]
        _, pull = vjp(lambda *v: self.transpose(on, v), *zeros)
        return lambda v: [*pull([*v])]


class JacobianMap:
    """The Jacobian of a function with respect to its first `count` tensors, at these and others."""

    def __init__(self, func: OnTensors, count: int) -> None:
        self.func = func
        self.count = count

    def __call__(self, on: Tensors, v: Tensors) -> list[Tensor]:
        return jvp_of(self.func, on, range(self.count), v)[1]

    def place(self, on: Tensors, like: Tensors) -> OnTensors:
        return lambda v: self(on, v)

    @property
    def transpose(self) -> LinearMap:
        return TransposedJacobianMap(self)


class TransposedJacobianMap:
    def __init__(self, transpose: JacobianMap) -> None:
        self.transpose = transpose

    def __call__(self, on: Tensors, v: Tensors) -> list[Tensor]:
        return self._pull(on)(v)

    def place(self, on: Tensors, like: Tensors) -> OnTensors:
        return (lambda v: self(on, v)) if any_recorded(*on) else self._pull(on)

    def _pull(self, on: Tensors) -> OnTensors:
        first, others = on[: self.transpose.count], on[self.transpose.count :]
        _, pull = vjp(lambda *x: self.transpose.func([*x, *others]), *first)
        return lambda v: [*pull([*v])]


class LinearSystem:
    """A linear map with its solvers.

    Args:
        api: the public function's name in error messages.
        map: the linear map.
        solve: takes a function of lists of tensors and a list of tensors; returns the solution and
            an aux that is ignored.
        transpose_solve: the same for the transposed map; None if there is none.
        solvers: both, closed over the tensors that they capture.
        is_own: whether solve is one of ours, which warn by themselves.
    """

    def __init__(
        self,
        api: str,
        map: LinearMap,
        solve: Callable[..., Any],
        transpose_solve: Callable[..., Any] | None,
        solvers: ClosedSolvers,
        is_own: bool,
        is_symmetric: bool = False,
    ) -> None:
        self.api = api
        self.map = map
        self.solve = solve
        self.transpose_solve = transpose_solve
        self.solvers = solvers
        self.is_own = is_own
        self.is_symmetric = is_symmetric

    @property
    def transpose(self) -> "LinearSystem":
        if self.is_symmetric:
            return self
        if self.transpose_solve is None:
            raise CallError(
                f"torchlayers: {self.api}: reverse mode needs transpose_solve(vecmat, b), which "
                "solves with the transposed matrix. If solve only calls the function that it is "
                "given, pass it as transpose_solve too; if the matrix is symmetric, pass "
                "symmetric=True."
            )
        return LinearSystem(
            self.api,
            self.map.transpose,
            self.transpose_solve,
            self.solve,
            self.solvers,
            self.is_own,
        )

    def solution(self, on: Tensors, b: Tensors) -> list[Tensor]:
        """Solves the system, differentiably. on: what the map depends on, then what the solvers
        capture."""
        x = solution(self._solve, on, b)
        return x if is_constant() else self.differentiable(on, b, x)

    def differentiable(self, on: Tensors, b: Tensors, x: Tensors) -> list[Tensor]:
        """Returns the constant solution x as a function of all that the system depends on."""
        return [*_apply(self, len(b), *x, *b, *on)]

    def _solve(self, on: Tensors, b: Tensors) -> list[Tensor]:
        captured = on[len(on) - len(self.solvers.captured) :]
        b = [x.contiguous() for x in b]  # the cotangent of a sum is expanded, which jvp refuses
        # A reverse pass runs without modes, but solvers may call control flow, which needs them.
        with torch_c._EnableTorchFunction(), self.solvers.replaced_by(captured):
            matvec = self.map.place(self._of_map(on), b)
            x: list[Tensor] = self.solve(matvec, b)[0]
            if not self.is_own:
                check_residual(self.api, matvec, b, x)
        return x

    def apply(self, on: Tensors, v: Tensors) -> list[Tensor]:
        """Applies the map, differentiably."""
        return self.map(self._of_map(on), v)

    def _of_map(self, on: Tensors) -> Tensors:
        return on[: len(on) - len(self.solvers.captured)]


def default_solve(matvec: Callable[[Any], Any], b: Any) -> Any:
    """Solves a linear system of pytrees: directly for few unknowns, by gmres for many."""
    return krylov.solve("gmres", None, matvec, b)


WARNING_SOLVERS.add(default_solve)

# A residual that shows that a system was not solved at all, whatever the solver's tolerance.
_UNSOLVED = 1e-3


def check_residual(api: str, matvec: OnTensors, b: Tensors, x: Tensors) -> None:
    """Warns if x is no solution: the solver has not converged, or solves another system."""
    form = Vectors(b)
    rhs = form.join(b)
    residual = relative_norm(form.join(matvec(x)) - rhs, rhs)
    warn_unless(
        residual <= _UNSOLVED,
        f"{api}: the linear solver",
        residual,
        _UNSOLVED,
        "Derivatives will be wrong. Reverse mode solves with the transposed matrix: the solver "
        "must use the function that it is given.",
    )


class _SolutionFunction(torch.autograd.Function):
    """Takes a LinearSystem, the number of tensors of x, x, b, and what the map depends on; returns
    x. NOTE [Derivatives of a solution]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(system: LinearSystem, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.system, ctx.count, *tensors = inputs
        ctx.set_materialize_grads(False)
        saved = (*output, *tensors[2 * ctx.count :])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        count, system = ctx.count, ctx.system
        x, on = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        g = or_zeros(cotangents, range(count), x)
        u = system.transpose.solution(on, g)
        places = differentiable_positions(ctx.needs_input_grad[2 + 2 * count :], on)
        products = vjp_of(
            lambda tensors: system.apply(tensors, x), on, places, [-cotangent for cotangent in u]
        )
        gradients = dict(zip(places, products, strict=True))
        return *[None] * (2 + count), *u, *(gradients.get(i) for i in range(len(on)))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Any) -> Any:
        count, system = ctx.count, ctx.system
        x, on = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        rhs = or_zeros(tangents[count : 2 * count], range(count), x)
        along = tangents[2 * count :]
        places = differentiable_positions([t is not None for t in along], on)
        if places:
            pushed = jvp_of(
                lambda tensors: system.apply(tensors, x), on, places, [along[i] for i in places]
            )[1]
            rhs = [a - b for a, b in zip(rhs, pushed, strict=True)]
        return tuple(system.solution(on, rhs))


_apply: Any = _SolutionFunction.apply
