"""Writes numbers of float64 programs so that they reach ONNX exactly.

torch.onnx rounds a Python number to float32 on its way to an operator of float64 tensors. So such a
number becomes a tensor, the sum of parts that float32 has.
"""

import math
import struct
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import emit, value

# The overload that takes a tensor in the place of the number.
_OF_TENSORS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.clamp.default: aten.clamp.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.eq.Scalar: aten.eq.Tensor,
    aten.fmod.Scalar: aten.fmod.Tensor,
    aten.ge.Scalar: aten.ge.Tensor,
    aten.gt.Scalar: aten.gt.Tensor,
    aten.le.Scalar: aten.le.Tensor,
    aten.lt.Scalar: aten.lt.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.ne.Scalar: aten.ne.Tensor,
    aten.pow.Scalar: aten.pow.Tensor_Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    aten.remainder.Scalar: aten.remainder.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
}
_WITH_TENSORS = {
    *_OF_TENSORS.values(),
    *(aten.atan2.default, aten.div.Tensor_mode, aten.maximum.default, aten.minimum.default),
}


def keep_scalars_exact(graph: GraphModule) -> None:
    """Replaces numbers that float32 rounds, beside float64 tensors, in a graph and those inside."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            for node in [*module.graph.nodes]:
                if node.op == "call_function":
                    _replace(node)
            module.recompile()


def _replace(node: Node) -> None:
    if node.target in (aten.full.default, aten.scalar_tensor.default, aten.full_like.default):
        _replace_filled(node)
        return
    alpha = node.kwargs.get("alpha")
    if isinstance(alpha, float) and _is_rounded(alpha) and _is_double(node):
        one, other = node.args[:2]
        scaled = emit(node, aten.mul.Tensor, other, _tensor_node(node, alpha))
        node.args, node.kwargs = (one, scaled), {}
    target = _OF_TENSORS.get(node.target, node.target)
    if target not in _WITH_TENSORS or not any(map(_is_double, node.all_input_nodes)):
        return
    numbers = [arg for arg in node.args if isinstance(arg, float)]
    if not any(map(_is_rounded, numbers)):
        return
    node.args = tuple(
        _tensor_node(node, float(arg)) if isinstance(arg, (int, float)) else arg
        for arg in node.args
    )
    node.target = target


def _replace_filled(node: Node) -> None:
    number = node.args[0] if node.target is aten.scalar_tensor.default else node.args[1]
    if not (_is_double(node) and isinstance(number, float) and _is_rounded(number)):
        return
    tensor = _tensor_node(node, number)
    if node.target is aten.scalar_tensor.default:
        node.replace_all_uses_with(tensor)
        node.graph.erase_node(node)
        return
    zeros = list(node.args)
    zeros[1] = 0.0
    node.args = tuple(zeros)
    with node.graph.inserting_after(node):
        filled = node.graph.call_function(aten.add.Tensor, (node, tensor))
    filled.meta = {"val": node.meta["val"]}
    node.replace_all_uses_with(filled, delete_user_cb=lambda user: user is not filled)


def _is_double(node: Node) -> bool:
    fake = value(node)
    return isinstance(fake, Tensor) and fake.dtype is torch.float64


def _rounded(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _is_rounded(number: float) -> bool:
    return math.isfinite(number) and _rounded(number) != number


def _tensor_node(before: Node, number: float) -> Node:
    """Emits nodes that add the number's parts of 24 bits, the first ones largest."""
    mantissa, exponent = math.frexp(number)
    steps, rest = divmod(exponent, _STEP) if number else (0, 0)
    number, node = math.ldexp(mantissa, rest), None
    while node is None or number:
        part = _rounded(number)
        number -= part
        filled = _filled(before, part)
        node = filled if node is None else emit(before, aten.add.Tensor, node, filled)
    for _ in range(abs(steps)):
        scale = _filled(before, math.ldexp(1.0, _STEP if steps > 0 else -_STEP))
        node = emit(before, aten.mul.Tensor, node, scale)
    return node


_STEP = 64  # a power of two by which float32 can scale, with all parts of the rest


def _filled(before: Node, number: float) -> Node:
    fake: Any = next(value(node) for node in (*before.all_input_nodes, before) if _is_double(node))
    kwargs = {"dtype": torch.float64, "device": fake.device}
    return emit(before, aten.full.default, [], number, **kwargs)
