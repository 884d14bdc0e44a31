"""tanh as a quotient of polynomials, in single precision.

Inductor calls a function of a library for it, which on CPUs takes as long as some 40
multiplications; PyTorch's own kernel is six times as fast, but can't be fused.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.compiled.simplify.nodes import aten, calls, emit, replace, value
from torchlayers.device import is_on_host

# tanh(x) / x is P(x * x) / Q(x * x) within 2e-8 up to x = 9: least squares, weighted until the
# largest relative error was as small as it gets. At LARGEST it is more than 1, and cut off.
P = (0.9999999794689591, 0.13381023960983976, 0.0034955861621070636, 2.0609051437470025e-05,
     1.33546216177627e-08)  # fmt: skip
Q = (1.0, 0.4671433955674721, 0.02587697464118322, 0.0003285631665486697, 7.776541561339786e-07)
LARGEST = 9.2


def approximate_tanh(graph: GraphModule) -> None:
    """Within 7 units in the last place; of nan it is nan."""
    for node in graph.graph.nodes:
        if not calls(node, aten.tanh.default):
            continue
        told = value(node)
        if told.dtype == torch.float32 and is_on_host(told):
            replace(node, _quotient(node, node.args[0]))


def _quotient(node: Node, argument: Any) -> Node:
    x = emit(node, aten.clamp.default, argument, -LARGEST, LARGEST)
    square = emit(node, aten.mul.Tensor, x, x)
    above = emit(node, aten.mul.Tensor, x, _polynomial(node, square, P))
    quotient = emit(node, aten.div.Tensor, above, _polynomial(node, square, Q))
    return emit(node, aten.clamp.default, quotient, -1.0, 1.0)


def _polynomial(node: Node, x: Node, coefficients: tuple[float, ...]) -> Node:
    *rest, last = coefficients
    result = emit(node, aten.mul.Tensor, x, last)
    for coefficient in reversed(rest[1:]):
        result = emit(node, aten.add.Tensor, result, coefficient)
        result = emit(node, aten.mul.Tensor, result, x)
    return emit(node, aten.add.Tensor, result, rest[0])
