"""laplacian and hessian_diagonal."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms.jacobian.basis import split_columns
from torchlayers.transforms.laplacian import seeds
from torchlayers.transforms.laplacian.layer import ForwardLaplacian, Parts
from torchlayers.transforms.laplacian.rows import Rows, dense
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.vmap import vmap


class Derivatives(NamedTuple):
    """What :func:`laplacian` returns with ``with_value=True``, each in the structure of func's
    output."""

    value: Any
    jacobian: Any
    laplacian: Any


class Options(NamedTuple):
    """The arguments of laplacian besides func and argnums."""

    api: str
    has_aux: bool = False
    with_value: bool = False
    directions: Any = None
    weights: Tensor | None = None
    randomness: seeds.Randomness | None = None


@overload
def laplacian(
    func: Callable[P, R],
    argnums: Argnums = 0,
    *,
    has_aux: Literal[False] = False,
    with_value: Literal[False] = False,
    directions: Any = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    distribution: seeds.Distribution = "rademacher",
    generator: torch.Generator | None = None,
    key: Tensor | None = None,
) -> Callable[P, R]: ...
@overload
def laplacian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    with_value: bool = False,
    directions: Any = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    distribution: seeds.Distribution = "rademacher",
    generator: torch.Generator | None = None,
    key: Tensor | None = None,
) -> Transformed[P, Any]: ...
def laplacian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    with_value: bool = False,
    directions: Any = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    distribution: seeds.Distribution = "rademacher",
    generator: torch.Generator | None = None,
    key: Tensor | None = None,
) -> Callable[..., Any]:
    """Laplacian: the sum of the second derivatives with respect to each element of an argument.

    One pass through func computes its value, Jacobian and Laplacian together. It never forms a
    Hessian, and the Laplacian stays one column, however many elements the argument has. For a
    batch, use ``vmap(laplacian(f))``.

    Args:
        func: takes tensors and pytrees of tensors; returns a tensor or a pytree of tensors, of any
            shape, or ``(output, aux)`` with has_aux.
        argnums: which positional arguments to differentiate with respect to, as for :func:`grad`;
            the sum runs over the elements of all of them.
        has_aux: func returns a second value, which is passed through.
        with_value: return the value and the Jacobian, too.
        directions: k directions, stacked in dimension 0 of a tensor for each chosen argument: the
            sum of the second derivatives along them instead. With the rows of ``sigma.T`` it is the
            trace of ``sigma sigma' H``, as in Fokker-Planck and Hamilton-Jacobi-Bellman equations.
        weights: W in the sum of ``W[i, j] d^2/dx_i dx_j``: a symmetric matrix (of another, its
            symmetric part counts), or its diagonal as a vector or in the argument's shape. With
            directions, i and j count these.
        samples: estimate the Laplacian by this many random directions, without bias. Its variance
            falls with ``1 / samples``, its cost does not depend on the number of elements.
        distribution: of the random directions: "rademacher" (entries of 1 and -1, the smaller
            variance) or "normal".
        generator: the torch.Generator to draw them with; None for torch's default one.
        key: a key of :mod:`torchlayers.random` to draw them with instead.
    Returns:
        A function with func's arguments that returns the Laplacian, in the structure, shapes and
        dtypes of func's output. With with_value it returns a named tuple ``(value, jacobian,
        laplacian)``: the Jacobian as :func:`jacrev` returns it; with directions, the derivatives
        along them, stacked in dimension 0; with samples None. With has_aux ``(result, aux)``.
    Raises:
        NotTensorError, DtypeError: a chosen argument holds something other than real floating-point
            tensors.
        StructureError: directions or weights do not fit the arguments.
        TransformError: samples, distribution, generator or key are invalid.
        OutputError: func returned something other than tensors.
        ArgnumsError: argnums does not match the arguments.
        RuleError: an operator has neither a rule, nor a forward-mode derivative, nor a
            decomposition.
    Example:
        >>> laplacian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor(18.)
        >>> laplacian(lambda x: x.prod(), with_value=True)(torch.tensor([2.0, 3.0]))
        Derivatives(value=tensor(6.), jacobian=tensor([3., 2.]), laplacian=tensor(0.))

    Source: Li et al., "A computational framework for neural network-based variational Monte Carlo
        with Forward Laplacian" (Nature Machine Intelligence, 2024), and the package folx; for
        samples, Hutchinson (1990), and Hu et al., "Hutchinson trace estimation for
        high-dimensional and high-order PINNs" (2024); Dangel et al., "Collapsing Taylor mode
        automatic differentiation" (2025).
    """
    randomness = seeds.check_randomness("laplacian", samples, distribution, generator, key)
    if randomness is not None and directions is not None:
        raise TransformError(
            "torchlayers: laplacian: directions and samples exclude each other: random directions "
            "replace all others. Use weights for a weighted sum."
        )
    options = Options("laplacian", has_aux, with_value, directions, weights, randomness)
    return by_options(options, func, argnums)


def by_options(options: Options, func: Callable[..., Any], argnums: Argnums) -> Callable[..., Any]:
    """laplacian with its other arguments given as Options, for transforms that are built on it."""
    if not are_numbers(argnums):
        return by_names(options.api, partial(by_options, options), func, argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _propagated(options, func, argnums, args, kwargs)

    return transformed(func, wrapper)


@tracing_state.skipped_while_tracing
@tracing_state.exported_below
def _propagated(
    options: Options,
    func: Callable[..., Any],
    argnums: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    # At the first call: a program without one need not wait for the rules.
    from torchlayers.transforms.laplacian import rules as rules

    api = options.api
    places = pytree.positions(api, argnums, len(args))
    chosen = pytree.pick(args, places)
    primals, spec = pytree.flatten(chosen)
    seeds.check_primals(api, primals, args, places)
    layer, rows, factor = _seeded(options, primals, spec)
    with layer:
        parts = [layer.result(primal, row, None) for primal, row in zip(primals, rows, strict=True)]
        inputs = list(args)
        for place, value in zip(places, pytree.unflatten(parts, spec), strict=True):
            inputs[place] = value
        output = layer.apply(func, *inputs, **kwargs)
    output, aux = pytree.split_aux(api, output) if options.has_aux else (output, None)
    leaves, output_spec = pytree.flatten(output)
    pytree.check_outputs(api, leaves)
    outputs = [_read_output(layer, leaf) for leaf in leaves]
    laplacians = [output_parts.laplacian for output_parts in outputs]
    if _count(rows[0]) == 0:  # a sum of nothing, also where a value is nan (a mean of nothing)
        laplacians = [torch.zeros_like(output_parts.value) for output_parts in outputs]
    if factor != 1:
        laplacians = [output_parts * factor for output_parts in laplacians]
    result = pytree.unflatten(laplacians, output_spec)
    if options.with_value:
        jacobian = None
        if options.randomness is None:
            jacobians = [output_parts.rows(_count(rows[0])) for output_parts in outputs]
            if options.directions is None:
                jacobians = [
                    _shaped(output_parts, primals, spec, argnums) for output_parts in jacobians
                ]
            jacobian = pytree.unflatten(jacobians, output_spec)
        value = pytree.unflatten([output_parts.value for output_parts in outputs], output_spec)
        result = Derivatives(value, jacobian, result)
    if not options.has_aux:
        return result
    return result, pytree.map_tensors(lambda leaf: _read_output(layer, leaf).value, aux)


def _seeded(
    options: Options, primals: list[Tensor], spec: pytree.TreeSpec
) -> tuple[ForwardLaplacian, Sequence[Rows], float]:
    """The layer, the rows to begin with, and a factor of the result."""
    total = sum(primal.numel() for primal in primals)
    shape = primals[0].shape if len(primals) == 1 else torch.Size([total])
    if options.directions is not None:
        rows = seeds.directions_for(options.api, options.directions, primals, spec)
        count = len(rows[0])
        weights = seeds.weights_for(options.api, options.weights, count, torch.Size([count]))
        return ForwardLaplacian(weights), rows, 1
    weights = seeds.weights_for(options.api, options.weights, total, shape)
    if options.randomness is not None:
        drawn = seeds.random_directions(options.randomness, primals, weights)
        factor = 1 / options.randomness.samples
        return ForwardLaplacian(is_paired=weights is not None), drawn, factor
    return ForwardLaplacian(weights), seeds.identity(primals), 1


def _count(rows: Rows) -> int:
    return len(rows) if isinstance(rows, Tensor) else rows.total


class _Read(NamedTuple):
    value: Tensor
    parts: Parts | None
    laplacian: Tensor

    def rows(self, count: int) -> Tensor:
        if self.parts is None:
            return self.value.new_zeros(count, *self.value.shape)
        return dense(self.parts.rows, self.value)


def _read_output(layer: ForwardLaplacian, leaf: Tensor) -> _Read:
    """An output's value and parts; a constant has zeros."""
    if not isinstance(leaf, LayerTensor) or leaf.layer is not layer:
        return _Read(leaf, None, torch.zeros_like(leaf))
    value, parts = leaf.value, leaf.parts
    if parts is None or parts.laplacian is None:
        return _Read(value, parts, torch.zeros_like(value))
    return _Read(value, parts, parts.laplacian)


def _shaped(rows: Tensor, primals: list[Tensor], spec: pytree.TreeSpec, argnums: Any) -> Any:
    """The Jacobian of one output, in the structure of the chosen arguments."""
    columns = pytree.unflatten(split_columns(rows.movedim(0, -1), primals), spec)
    return columns[0] if isinstance(argnums, int) else columns


def hessian_diagonal(
    func: Callable[P, Any], argnums: Argnums = 0, *, has_aux: bool = False
) -> Callable[P, Any]:
    """Diagonal of the Hessian: the second derivative with respect to each element by itself.

    One pass through func per element, all of them at once under vmap, with a second-order Taylor
    polynomial in each; no mixed derivative is computed.

    Args:
        func: as for :func:`laplacian`.
        argnums: as for :func:`laplacian`.
        has_aux: func returns a second value, which is passed through.
    Returns:
        A function with func's arguments. For one output of shape O and one chosen argument of shape
        I the result has shape ``(*O, *I)``, as from :func:`jacrev`; with has_aux ``(diagonal,
        aux)``.
    Raises:
        The errors of :func:`laplacian`.
    Example:
        >>> hessian_diagonal(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([ 6., 12.])

    Source: Griewank and Walther, "Evaluating Derivatives" (2008), chapter 13.
    """
    if not are_numbers(argnums):
        transform = partial(hessian_diagonal, has_aux=has_aux)
        return by_names("hessian_diagonal", transform, func, argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = pytree.positions("hessian_diagonal", argnums, len(args))
        primals, spec = pytree.flatten(pytree.pick(args, places))
        seeds.check_primals("hessian_diagonal", primals, args, places)
        along = [
            dense(rows, primal)
            for rows, primal in zip(seeds.identity(primals), primals, strict=True)
        ]
        seen: dict[str, Any] = {}

        def second(*direction: Tensor) -> list[Tensor]:
            rows = pytree.unflatten([tangent.unsqueeze(0) for tangent in direction], spec)
            options = Options("hessian_diagonal", has_aux, directions=rows)
            result = by_options(options, func, argnums)(*args, **kwargs)
            result, aux = result if has_aux else (result, None)
            leaves, seen["spec"] = pytree.flatten(result)
            seen["aux"], seen["aux_spec"] = pytree.flatten(aux)
            seen["tensors"] = [isinstance(leaf, Tensor) for leaf in seen["aux"]]
            return [*leaves, *(leaf for leaf in seen["aux"] if isinstance(leaf, Tensor))]

        results = vmap(second)(*along)
        count = seen["spec"].num_leaves
        diagonals = [_shaped(rows, primals, spec, argnums) for rows in results[:count]]
        result = pytree.unflatten(diagonals, seen["spec"])
        if not has_aux:
            return result
        values = iter(leaf[0] for leaf in results[count:])
        aux = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in seen["aux"]]
        return result, pytree.unflatten(aux, seen["aux_spec"])

    return transformed(func, wrapper)
