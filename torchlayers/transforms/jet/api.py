"""Taylor mode: jet.

A layer is entered, in which tensors carry the coefficients of a truncated power series; the
primals get those of the given series; the function runs; and its results' coefficients are
returned. The rules of operators are in rules/.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import (
    DtypeError,
    NotTensorError,
    OutputError,
    StructureError,
    instead,
)
from torchlayers.core.function_checks import require_function
from torchlayers.transforms.jet.layer import Jet, has_derivatives
from torchlayers.transforms.layers.transformed_call import transformed_call


def jet(
    func: Callable[..., Any], primals: Sequence[Any], series: Sequence[Sequence[Any]]
) -> tuple[Any, list[Any]]:
    """Taylor mode: func's value and its derivatives along a curve, up to any order.

    For a curve x(t) with x(0) = primals, and y(t) = func(x(t)), it takes the derivatives of x at
    t = 0 and returns those of y. They are the derivatives themselves, as in JAX: the Taylor
    coefficients times k!. With ``series = ([v, None],)`` the curve is a line, x + t v, and the
    results are func's first and second derivative along v.

    The time grows with the square of the order, where nested jvps double it each time. An operator
    without a rule is differentiated by nested jvps (docs/taylor-mode.md lists those with one).

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors.
        primals: a tuple of tensors or pytrees of tensors: func's positional arguments.
        series: for each primal a list of the curve's derivatives [x', x'', x''', ...], each with
            the primal's structure, shapes and dtypes, or None for zero. All lists have the same
            length, the order.
    Returns:
        ``(output, output_series)``: func's output, and the list [y', y'', y''', ...], each with
        the structure, shapes and dtypes of the output.
    Raises:
        StructureError: primals or series are not sequences, or do not match each other.
        NotTensorError: a primal or a series holds something other than tensors.
        DtypeError: a primal is neither floating-point nor complex, or a derivative does not have
            its dtype.
        OutputError: func returned something other than tensors.
    Example:
        >>> jet(torch.exp, (torch.tensor(0.0),), ([torch.tensor(1.0), None, None],))
        (tensor(1.), [tensor(1.), tensor(1.), tensor(1.)])

    Source: jax.experimental.jet; Griewank and Walther, "Evaluating Derivatives" (2008), chapter 13;
        Bettencourt, Johnson and Duvenaud, "Taylor-Mode Automatic Differentiation for Higher-Order
        Derivatives in JAX" (2019).
    """
    # At the first call: a program without one need not wait for the rules.
    from torchlayers.transforms.jet import rules as rules

    order = _order_of(primals, series)
    primals = tuple(primals)
    leaves, spec = pytree.flatten(primals)
    _check_primals(primals, leaves)
    curves: list[list[Any]] = [[] for _ in leaves]  # of each leaf
    for n in range(1, order + 1):
        for curve, derivative in zip(curves, _leaves_of(n, primals, series), strict=True):
            curve.append(_scaled(derivative, 1 / math.factorial(n)))
    require_function(func)
    output, derivatives = transformed_call(Jet(order), func, (primals, curves), {})

    passed = {
        id(leaf) for leaf in [*leaves, *(coefficient for curve in curves for coefficient in curve)]
    }
    values, spec = pytree.flatten(output)
    _check_outputs(func, values)
    output_series = [
        pytree.unflatten(
            [
                torch.zeros_like(value)
                if parts is None or parts[n - 1] is None
                else _apart(_scaled(parts[n - 1], math.factorial(n)), passed)
                for value, parts in zip(values, derivatives, strict=True)
            ],
            spec,
        )
        for n in range(1, order + 1)
    ]
    return pytree.unflatten([_apart(value, passed) for value in values], spec), output_series


def _order_of(primals: Any, series: Any) -> int:
    for name, sequence in (("primals", primals), ("series", series)):
        if not isinstance(sequence, (tuple, list)):
            raise StructureError(
                f"torchlayers: jet: {name} must be a tuple with an entry for each argument of the "
                f"function; got {type(sequence).__name__}. For one argument write ({name[0]},)."
            )
    if len(series) != len(primals):
        raise StructureError(
            f"torchlayers: jet: series must have a list for each of the {len(primals)} primals, "
            f"got {len(series)}."
        )
    for i, terms in enumerate(series):
        if not isinstance(terms, (tuple, list)):
            raise StructureError(
                f"torchlayers: jet: series {i} must be the list of the derivatives of primal {i}, "
                f"[x', x'', ...]; got {type(terms).__name__}."
            )
        if len(terms) != len(series[0]):
            raise StructureError(
                f"torchlayers: jet: all series must have the same length, the order: series 0 has "
                f"{len(series[0])} derivatives, series {i} has {len(terms)}. Write None for those "
                "that are zero."
            )
    return len(series[0]) if series else 0


def _leaves_of(n: int, primals: tuple[Any, ...], series: Sequence[Sequence[Any]]) -> list[Any]:
    """The derivatives of order n of the primals' leaves, None for zero."""
    flat_series: list[Any] = []
    for i, primal in enumerate(primals):
        values, spec = pytree.flatten(primal)
        term = series[i][n - 1]
        if term is None:
            flat_series += [None] * len(values)
            continue
        derivatives, own_spec = pytree.flatten(term)
        if own_spec != spec:
            raise StructureError(
                f"torchlayers: jet: derivative {n} of primal {i} must have the primal's structure: "
                f"got {pytree.describe(own_spec)} for {pytree.describe(spec)} (* is a leaf)."
            )
        for j, (value, derivative) in enumerate(zip(values, derivatives, strict=True)):
            name = f"derivative {n} of {pytree.leaf_name('primal', [primal], j, [0])}"
            _check_derivative(name.replace("primal 0", f"primal {i}", 1), value, derivative)
        flat_series += derivatives
    return flat_series


def _check_primals(primals: tuple[Any, ...], leaves: list[Any]) -> None:
    if not leaves:
        raise StructureError("torchlayers: jet: primals must hold at least one tensor.")
    for i, leaf in enumerate(leaves):
        name = pytree.leaf_name("primal", primals, i)
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: jet: {name} must be a tensor, got {type(leaf).__name__}. Convert it "
                f"to a tensor, or {instead('jvp')}."
            )
        if not has_derivatives(leaf):
            raise DtypeError(
                f"torchlayers: jet: {name} must be floating-point or complex, got {leaf.dtype}. "
                f"Convert it, or {instead('jvp')}."
            )


def _check_derivative(name: str, value: Tensor, derivative: Any) -> None:
    if derivative is None:
        return
    if not isinstance(derivative, Tensor):
        raise NotTensorError(
            f"torchlayers: jet: {name} must be a tensor, or None for zero; got "
            f"{type(derivative).__name__}."
        )
    if derivative.shape != value.shape:
        raise StructureError(
            f"torchlayers: jet: {name} has shape {tuple(derivative.shape)}, but its primal has "
            f"shape {tuple(value.shape)}: the shapes must be equal."
        )
    if derivative.dtype != value.dtype:
        raise DtypeError(
            f"torchlayers: jet: {name} is {derivative.dtype}, but its primal is {value.dtype}: the "
            "dtypes must be equal."
        )
    if derivative.device != value.device:
        raise StructureError(
            f"torchlayers: jet: {name} is on {derivative.device}, but its primal is on "
            f"{value.device}: they must be on the same device."
        )


def _check_outputs(func: Callable[..., Any], values: list[Any]) -> None:
    if not values:
        raise OutputError(
            f"torchlayers: jet: {pytree.name_of(func)} returned nothing to differentiate."
        )
    for value in values:
        if not isinstance(value, Tensor):
            raise OutputError(
                f"torchlayers: jet: {pytree.name_of(func)} must return only tensors, got "
                f"{type(value).__name__}."
            )


def _scaled(derivative: Any, factor: float) -> Any:
    return derivative if derivative is None or factor == 1 else derivative * factor


def _apart(tensor: Tensor, passed: set[int]) -> Tensor:
    """A view of a tensor that the caller passed, so that a result is never the caller's own."""
    return tensor.view_as(tensor) if id(tensor) in passed else tensor
