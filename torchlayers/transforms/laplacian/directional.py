"""directional_derivatives and biharmonic: derivatives of higher order along directions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms.jet.api import jet
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.laplacian import seeds
from torchlayers.transforms.laplacian.api import Options, by_options
from torchlayers.transforms.vmap import vmap


def directional_derivatives(
    func: Callable[..., Any], primals: Any, directions: Any, order: int
) -> tuple[Any, ...]:
    """Derivatives of the orders 0, 1, ..., order along each of some directions.

    For a direction v the derivative of order n is that of ``func(x + t * v)`` with respect to t, n
    times, at t = 0. All directions are computed at once; the value is computed once.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors.
        primals: a tensor, func's only argument, or a tuple of tensors or pytrees of tensors, its
            positional arguments.
        directions: k directions stacked in dimension 0, in the structure of the primals.
        order: the highest order, at least 1.
    Returns:
        A tuple of ``order + 1`` entries, each in the structure of func's output: the value, of
        shape O, and the derivatives of each order, of shape ``(k, *O)``.
    Raises:
        TransformError: order is not a positive int.
        NotTensorError, DtypeError: a primal is not a real floating-point tensor.
        StructureError: the directions do not match the primals.
        OutputError: func returned something other than tensors.
    Example:
        >>> x, directions = torch.tensor([1.0, 2.0]), torch.eye(2)
        >>> directional_derivatives(lambda x: (x**3).sum(), x, directions, 3)
        (tensor(9.), tensor([ 3., 12.]), tensor([ 6., 12.]), tensor([6., 6.]))

    Source: Griewank and Walther, "Evaluating Derivatives" (2008), chapter 13; Shi et al.,
        "Stochastic Taylor derivative estimator" (2024).
    """
    api = "directional_derivatives"
    if not isinstance(order, int) or isinstance(order, bool) or order < 1:
        raise TransformError(f"torchlayers: {api}: order must be a positive int, got {order!r}.")
    args = primals if isinstance(primals, tuple) else (primals,)
    leaves, spec = pytree.flatten(args)
    seeds.check_primals(api, leaves, args, range(len(args)))
    along = seeds.directions_for(api, directions, leaves, spec)
    seen: dict[str, Any] = {}

    def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, seen["spec"] = pytree.flatten(func(*pytree.unflatten(inputs, spec)))
        pytree.check_outputs(api, outputs)
        return tuple(outputs)

    def of_one(*direction: Tensor) -> list[tuple[Tensor, ...]]:
        return _derivatives(flat, tuple(leaves), direction, order)

    out_dims = [None, *[0] * order]
    orders = vmap(of_one, out_dims=out_dims)(*along)
    return tuple(pytree.unflatten(list(derivative), seen["spec"]) for derivative in orders)


def _derivatives(
    func: Callable[..., tuple[Tensor, ...]],
    primals: tuple[Tensor, ...],
    direction: Sequence[Tensor],
    order: int,
) -> list[tuple[Tensor, ...]]:
    """The derivatives of the orders 0 to order along one direction."""
    if order == 1:
        return list(jvp(func, primals, tuple(direction)))
    line = tuple([tangent, *[None] * (order - 1)] for tangent in direction)
    value, series = jet(func, primals, line)
    return [value, *series]


def biharmonic(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    key: Tensor | None = None,
) -> Callable[..., Any]:
    """Biharmonic operator: the Laplacian of the Laplacian.

    It is exact, by a :func:`laplacian` of a :func:`laplacian`, whose cost grows with the square of
    the number of elements. With samples it is estimated without bias from fourth derivatives along
    normally distributed directions v, whose mean is 3 times the biharmonic; the cost does not
    depend on the number of elements.

    Args:
        func: as for :func:`laplacian`.
        argnums: as for :func:`laplacian`.
        samples: how many random directions to draw; None for the exact result.
        generator, key: as for :func:`laplacian`.
    Returns:
        A function with func's arguments that returns the result in the structure, shapes and
        dtypes of func's output.
    Raises:
        The errors of :func:`laplacian`.
    Example:
        >>> biharmonic(lambda x: (x**4).sum())(torch.tensor([1.0, 2.0]))
        tensor(48.)

    Source: Shi et al., "Stochastic Taylor derivative estimator: efficient amortization for
        arbitrary differential operators" (NeurIPS 2024); Dangel et al., "Collapsing Taylor mode
        automatic differentiation" (2025).
    """
    randomness = seeds.check_randomness("biharmonic", samples, "normal", generator, key)
    if not are_numbers(argnums):
        transform = partial(biharmonic, samples=samples, generator=generator, key=key)
        return by_names("biharmonic", transform, func, argnums)
    if randomness is None:
        options = Options("biharmonic")
        return transformed(func, by_options(options, by_options(options, func, argnums), argnums))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = pytree.positions("biharmonic", argnums, len(args))
        primals, spec = pytree.flatten(pytree.pick(args, places))
        seeds.check_primals("biharmonic", primals, args, places)

        def of_chosen(*leaves: Tensor) -> Any:
            inputs = list(args)
            for place, value in zip(places, pytree.unflatten(leaves, spec), strict=True):
                inputs[place] = value
            return func(*inputs, **kwargs)

        drawn = tuple(randomness.draw(primals))
        fourth = directional_derivatives(of_chosen, tuple(primals), drawn, 4)[-1]
        return pytree.map_tensors(lambda leaf: leaf.mean(0) / 3, fourth)

    return transformed(func, wrapper)
