"""Floating-point operations of operators, counted from the shapes of their tensors."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.flop_counter import flop_registry, shape_wrapper

from torchlayers.core.operators import aten

__all__ = ["convolution_backward_flops", "flop_formula"]


def convolution_backward_flops(
    grad_output: Sequence[int],
    input: Sequence[int],
    weight: Sequence[int],
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
    **_: Any,
) -> int:
    """Counts the gradients of a convolution's input and weight, as many as the mask asks for.

    Each takes the convolution's own operations: every output (a transposed convolution's every
    input) meets the weights of its group. The formula in torch counts all channels for each group.
    """
    once = 2 * math.prod(input if transposed else grad_output) * math.prod(weight[1:])
    return once * (bool(output_mask[0]) + bool(output_mask[1]))


_OURS: dict[Any, Callable[..., int]] = {
    aten.convolution_backward: shape_wrapper(convolution_backward_flops),  # type: ignore[no-untyped-call]
}


def flop_formula(operator: Any) -> Callable[..., int] | None:
    """Returns the formula of a product or convolution; None for operators that have none.

    It is called with the operator's arguments, and ``out_val``, its results.
    """
    packet = getattr(operator, "overloadpacket", None)
    formula: Callable[..., int] | None = _OURS.get(packet) or flop_registry.get(packet)
    return formula
