"""Piecewise linear operators: those that select, sort or clamp.

At a point, such an operator is linear in all its tensors together, up to a constant; so each
coefficient of the result is a jvp with one coefficient of the operands as the tangent. At a tie the
jvp chooses.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import Call, Jet, has_derivatives
from torchlayers.transforms.jet.rules.linear import jointly_linear
from torchlayers.transforms.jet.series import Coefficient, Series
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.layers.rule_table import facts


@Jet.rule("piecewise linear", aten.as_strided_scatter)
def select(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    if facts(op)["is_linear"] and op is not aten.as_strided_scatter.default:
        return jointly_linear(layer, op, *args, **kwargs)
    call = Call(layer, op, args, kwargs)
    value = call.value()
    if call.is_constant:
        return value
    leaves, spec = pytree.flatten(value)
    places = [i for i, leaf in enumerate(leaves) if has_derivatives(leaf)]

    def with_derivatives(*operands: Tensor) -> list[Tensor]:
        results = pytree.leaves(call.on(operands))
        return [results[i] for i in places]

    found = [_slope(with_derivatives, call.operands, k) for k in layer.orders]
    for j, i in enumerate(places):
        leaves[i] = layer.result(leaves[i], [None if all_ is None else all_[j] for all_ in found])
    return pytree.unflatten(leaves, spec)


def piecewise_linear(function: Callable[[Tensor], Tensor], x: Series) -> Series:
    """A piecewise linear function of a series."""

    def compute(k: int) -> Coefficient:
        if k == 0:
            return function(x[0])
        slopes = _slope(lambda value: [function(value)], [x], k)
        return None if slopes is None else slopes[0]

    return Series(compute)


def _slope(function: Callable[..., list[Tensor]], operands: list[Series], k: int) -> Any:
    """The tangents of the results, by the k-th coefficients of the operands."""
    moving = [x[k] is not None for x in operands]
    if not any(moving):
        return None

    def of_moving(*primals: Tensor) -> list[Tensor]:
        given = iter(primals)
        pairs = zip(operands, moving, strict=True)
        return function(*(next(given) if moves else x[0] for x, moves in pairs))

    primals = tuple(x[0] for x in operands if x[k] is not None)
    return jvp(of_moving, primals, tuple(x[k] for x in operands if x[k] is not None))[1]
