"""Piecewise linear operators: those that select, sort or clamp.

At a point, such an operator is linear in all its tensors together, up to a constant; so each
coefficient of the result is a jvp with one coefficient of the operands as the tangent. At a tie the
jvp chooses.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import Call, Jet, in_cpp
from torchlayers.transforms.jet.rules.linear import jointly_linear
from torchlayers.transforms.jet.series import Coefficient, Series
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.layers.rule_table import facts


@Jet.rule("piecewise linear", aten.as_strided_scatter)
@in_cpp("sum")
def select(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    if facts(op)["is_linear"] and op is not aten.as_strided_scatter.default:
        return jointly_linear(layer, op, *args, **kwargs)
    call = Call(layer, op, args, kwargs)
    value = call.value
    if call.is_constant:
        return value
    tangents = [call.tangent([x[k] for x in call.series]) for k in layer.orders]
    if isinstance(value, Tensor):
        return layer.result(value, tangents)
    pairs = zip(value, zip(*tangents, strict=True), strict=True)
    return [layer.result(*pair) for pair in pairs]


def piecewise_linear(function: Callable[[Tensor], Tensor], x: Series) -> Series:
    """A piecewise linear function of a series."""

    def compute(k: int) -> Coefficient:
        if k == 0:
            return function(x[0])
        tangent = x[k]
        return None if tangent is None else jvp(function, (x[0],), (tangent,))[1]

    return Series(compute)
