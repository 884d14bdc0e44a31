"""Reference implementations of the transforms, which nest: loops and plain autograd, and finite
differences."""

from collections.abc import Callable

import torch
from torch import Tensor

import torchlayers
from torchlayers.random.seeded import DrawCounters

Function = Callable[[Tensor], Tensor]

# Relative tolerance between the slopes extrapolated from two pairs of steps, where nothing jumps.
# The one from the shorter steps is wrong by a fifteenth of their difference.
AGREES = 1e-5


class Plain:
    """By loops over samples and plain autograd."""

    @staticmethod
    def vmap(
        func: Function,
        in_dims: int = 0,
        out_dims: int = 0,
        randomness: str = "error",
        key: Tensor | None = None,
    ) -> Function:
        def loop(x: Tensor) -> Tensor:
            state, draws = torch.get_rng_state(), DrawCounters()
            results = []
            for i, sample in enumerate(x.unbind(in_dims)):
                if key is not None:
                    own = torchlayers.random.fold_in(key, i)
                    results.append(torchlayers.seeded(func, own)(sample))
                elif randomness == "same" and i > 0:
                    torch.set_rng_state(state)
                    with draws.replayed():
                        results.append(func(sample))
                else:
                    results.append(func(sample))
            return torch.stack(results, out_dims)

        return loop

    @staticmethod
    def grad(func: Function) -> Function:
        def gradient(x: Tensor) -> Tensor:
            y = variable(x)
            value = func(y)
            return pull_back(value, y, torch.ones_like(value))

        return gradient

    @staticmethod
    def vjp(func: Function, x: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        y = variable(x)
        value = func(y)
        return value, lambda cotangent: (pull_back(value, y, cotangent),)

    @staticmethod
    def jvp(
        func: Function, primals: tuple[Tensor], tangents: tuple[Tensor]
    ) -> tuple[Tensor, Tensor]:
        y = variable(*primals)
        value = func(y)
        return value, push_forward(value, y, *tangents)

    @staticmethod
    def jacrev(func: Function) -> Function:
        def jacobian(x: Tensor) -> Tensor:
            y = variable(x)
            value = func(y)
            rows = [pull_back(element, y, torch.ones_like(element)) for element in value.flatten()]
            if not rows:
                return x.new_zeros(value.shape + x.shape)
            return torch.stack(rows).reshape(value.shape + x.shape)

        return jacobian

    @staticmethod
    def jacfwd(func: Function) -> Function:
        """Has the result's dtype, where jacrev has the argument's."""
        return lambda x: Plain.jacrev(func)(x).to(func(x).dtype)

    @staticmethod
    def hessian(func: Function) -> Function:
        return Plain.jacfwd(Plain.jacrev(func))

    @staticmethod
    def jet(
        func: Function, primals: tuple[Tensor], series: tuple[list[Tensor]]
    ) -> tuple[Tensor, list[Tensor]]:
        """Two derivatives by the parameter of the curve."""
        (x,), ((velocity, acceleration),) = primals, series
        t = torch.zeros((), dtype=x.dtype).requires_grad_()
        value = func(x + t * velocity + t**2 / 2 * acceleration)
        first = push_forward(value, t, torch.ones_like(t))
        return value, [first, push_forward(first, t, torch.ones_like(t))]

    @staticmethod
    def laplacian(func: Function) -> Function:
        def total(x: Tensor) -> Tensor:
            result = torch.zeros_like(func(x))
            for direction in torch.eye(x.numel(), dtype=x.dtype).reshape(x.numel(), *x.shape):
                curve = [direction, torch.zeros_like(x)]
                result = result + Plain.jet(func, (x,), (curve,))[1][1]
            return result

        return total

    @staticmethod
    def linearize(func: Function, x: Tensor) -> tuple[Tensor, Function]:
        y = variable(x)
        value = func(y)
        return value, lambda tangent: push_forward(value, y, tangent)

    @staticmethod
    def functionalize(func: Function, remove: str = "mutations") -> Function:
        return func

    @staticmethod
    def checkpoint(func: Function) -> Function:
        return func


def variable(x: Tensor) -> Tensor:
    """x as a separate tensor to differentiate by, through which plain autograd still reaches x."""
    return x.view_as(x) if x.requires_grad else x.clone().requires_grad_()


def pull_back(value: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        value, x, cotangent, create_graph=True, materialize_grads=True
    )
    return gradient


def push_forward(value: Tensor, x: Tensor, tangent: Tensor) -> Tensor:
    """Uses two backwards: the derivative of the cotangents is the Jacobian, transposed twice."""
    cotangent = torch.zeros_like(value).requires_grad_()
    return pull_back(pull_back(value, x, cotangent), cotangent, tangent)


def slope(func: Function, x: Tensor, tangent: Tensor) -> Tensor:
    """The central difference of real float64 tensors; nan where it is unreliable.

    That is where the function jumps between two of the evaluation points (masked_fill, where its
    condition changes): the quotient grows as the step shrinks.
    """

    def difference(step: float) -> Tensor:
        ahead, behind = func(x + step * tangent), func(x - step * tangent)
        return (ahead - behind).detach() / (2 * step)

    longest, middle, shortest = difference(1e-3), difference(5e-4), difference(2.5e-4)
    # The error of a central difference is quadratic in its step, and cancels.
    fine, coarse = (4 * shortest - middle) / 3, (4 * middle - longest) / 3
    says_nothing = (fine - coarse).abs() > AGREES * (1 + fine.abs())
    return fine.masked_fill(says_nothing, torch.nan)


class Differences:
    """By central differences of real float64 tensors."""

    @staticmethod
    def jvp(
        func: Function, primals: tuple[Tensor], tangents: tuple[Tensor]
    ) -> tuple[Tensor, Tensor]:
        (x,), (tangent,) = primals, tangents
        return func(x).detach(), slope(func, x, tangent)

    @staticmethod
    def linearize(func: Function, x: Tensor) -> tuple[Tensor, Function]:
        return func(x).detach(), lambda tangent: slope(func, x, tangent)

    @staticmethod
    def jacfwd(func: Function) -> Function:
        def jacobian(x: Tensor) -> Tensor:
            basis = torch.eye(x.numel(), dtype=x.dtype).reshape(x.numel(), *x.shape)
            columns = [slope(func, x, direction) for direction in basis]
            if not columns:
                return x.new_zeros(func(x).shape + x.shape)
            return torch.stack(columns, -1).reshape(columns[0].shape + x.shape)

        return jacobian

    jacrev = grad = jacfwd

    @staticmethod
    def vjp(func: Function, x: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        jacobian = Differences.jacfwd(func)(x)
        value = func(x).detach()
        return value, lambda cotangent: (torch.tensordot(cotangent, jacobian, value.dim()),)

    @staticmethod
    def hessian(func: Function) -> Function:
        return Differences.jacfwd(Plain.jacrev(func))
