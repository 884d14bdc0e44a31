"""Derivatives that csrc/rules states as polynomials of the result: a + b y + c y^2."""

import functools
from typing import Any

from torch import Tensor

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten, present
from torchlayers.transforms.layers.rule_table import facts, terms_of


def slope_of(op: Any) -> tuple[float, float, float]:
    """(a, b, c) of an operator for which csrc/rules states them."""
    slope = facts(op)["slope"]
    assert slope is not None
    return slope


@functools.cache
def backward_of(op: Any) -> Any:
    """torch's operator that multiplies its first argument by the derivative in one pass; None if
    there is none. Of complex numbers it takes the conjugate."""
    packets = present([getattr(aten, f"{op.overloadpacket.__name__}_backward")])
    return next((packet.default for packet in packets), None)


@functools.cache
def backward_of_argument(op: Any) -> Any:
    """The same, if that computes the derivative from the operator's arguments and csrc/rules states
    its own derivative, the second one."""
    backward = backward_of(op)
    if backward is None:
        return None
    takes = [argument.name for argument in schema_of(backward).arguments[1:]]
    takes_arguments = takes == [argument.name for argument in schema_of(op).arguments]
    return backward if takes_arguments and 1 in terms_of(backward) else None


def slope_at(y: Tensor, a: float, b: float, c: float) -> Tensor:
    """a + b y + c y^2, in few operators."""
    slope = y if b else y * y
    if b and b != 1:
        slope = slope * b
    if b and c:
        slope = slope.addcmul(y, y, value=c)
    elif c and c != 1:
        slope = -slope if c == -1 else slope * c
    return slope + a if a else slope
