"""Constant folding of zeros, ones and identity matrices.

Exact, with two exceptions. x + 0 becomes x, also for products that are added to zeros, which
changes the sign of x = -0. A product with an identity matrix becomes its other factor, where
multiplying would spread nan from inf and nan times 0. x * 0 is not folded: it may be nan. Nor are
complex numbers: inf times 1 + 0i has a nan.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.known_constants import FACTORIES, Known, is_identity, number_of
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import emit, is_tensor, replace, same_sizes, value

Folding = Callable[[Node, Known], Node | None]


def fold_constants(graph: GraphModule) -> None:
    """Simplifies each node according to its constant arguments."""
    known: Known = {}
    for node in graph.graph.nodes:
        if (number := number_of(node, known)) is not None:
            known[node] = number
        elif node.target in FOLDINGS and is_tensor(node) and not value(node).is_complex():
            folded = FOLDINGS[node.target](node, known)
            if folded is not None:
                replace(node, folded)
    for node, number in reversed(known.items()):
        if node.users and not _is_plain(node):
            replace(node, _filled(node, number))
        if not node.users:
            graph.graph.erase_node(node)


def _is_plain(node: Node) -> bool:
    """Whether a factory call has each element in memory: operators write to copies of it."""
    return not node.all_input_nodes and node.target in {*FACTORIES, aten.full.default}


def _filled(node: Node, number: Any) -> Node:
    fake = value(node)
    kind = {"dtype": fake.dtype, "device": fake.device, "pin_memory": False}
    return emit(node, aten.full.default, list(fake.shape), number, **kind)


def _number(argument: Any, known: Known) -> Any:
    """Returns the number itself, or that of a node with the same number in each element."""
    if isinstance(argument, Node):
        return known.get(argument)
    return argument if isinstance(argument, (bool, int, float, complex)) else None


def _as_result_of(node: Node, operand: Any) -> Node | None:
    """Returns the argument cast and expanded to the node's dtype and sizes; None if impossible."""
    fake = value(node)
    if not is_tensor(operand) or value(operand).device != fake.device:
        return None
    same: Node = operand
    if value(same).dtype != fake.dtype:
        same = emit(node, aten._to_copy.default, same, dtype=fake.dtype)
    if not same_sizes(value(same).shape, fake.shape):
        same = emit(node, aten.expand.default, same, list(fake.shape))
    return same


def _by_number(node: Node, operand: Any, number: Any, *rest: Any, **kwargs: Any) -> Node | None:
    """Returns the operator with a number instead of a constant tensor; None if dtypes differ."""
    fake = value(node)
    if not is_tensor(operand) or value(operand).device != fake.device:
        return None
    new = emit(node, node.target, operand, number, *rest, **kwargs)  # type: ignore[arg-type]
    if value(new).dtype != fake.dtype:
        node.graph.erase_node(new)
        return None
    return _as_result_of(node, new)


def _product(node: Node, known: Known) -> Node | None:
    for operand, other in (node.args[:2], node.args[1::-1]):
        number = _number(other, known)
        if number is None or not is_tensor(operand):
            continue
        if number == 1:
            return _as_result_of(node, operand)
        if isinstance(other, Node):
            return _by_number(node, operand, number)
    return None


def _sum(node: Node, known: Known) -> Node | None:
    one, other = node.args[:2]
    scale: Any = node.kwargs.get("alpha", 1)
    number = _number(other, known)
    if number == 0 and math.isfinite(scale):
        return _as_result_of(node, one)
    if number is not None and isinstance(other, Node):
        return _by_number(node, one, number, **node.kwargs)
    number = _number(one, known)
    if node.target is not aten.add.Tensor or scale != 1 or number is None:
        return None
    if number == 0:
        return _as_result_of(node, other)
    return _by_number(node, other, number)


def _quotient(node: Node, known: Known) -> Node | None:
    number = _number(node.args[1], known)
    if number == 1 and value(node).is_floating_point():
        return _as_result_of(node, node.args[0])
    return None


def _power(node: Node, known: Known) -> Node | None:
    return _as_result_of(node, node.args[0]) if node.args[1] == 1 else None


def _negation(node: Node, known: Known) -> Node | None:
    source: Any = node.args[0]
    return source.args[0] if source.target is aten.neg.default else None


def _sum_of_product(node: Node, known: Known) -> Node | None:
    """Folds addcmul, addmm, addmv or baddbmm whose first argument is zeros."""
    if _number(node.args[0], known) != 0 or node.kwargs:
        return None
    operators: dict[Any, Any] = {
        aten.addcmul.default: aten.mul.Tensor,
        aten.addmm.default: aten.mm.default,
        aten.addmv.default: aten.mv.default,
        aten.baddbmm.default: aten.bmm.default,
    }
    product = emit(node, operators[node.target], *node.args[1:])
    return _as_result_of(node, product)


def _put_in_zeros(node: Node, known: Known) -> Node | None:
    """Folds select_backward(x, sizes, dim, index) and slice_backward(x, …) that fill all."""
    source: Any = node.args[0]
    fake: Tensor = value(node)
    if node.target is aten.select_backward.default:
        dim: Any = node.args[2]
        whole = fake.shape[dim] == 1
        return emit(node, aten.unsqueeze.default, source, dim % fake.dim()) if whole else None
    return source if same_sizes(value(source).shape, fake.shape) else None


def _matrix_product(node: Node, known: Known) -> Node | None:
    one, other = node.args[:2]
    if is_identity(one):
        return _as_result_of(node, other)
    return _as_result_of(node, one) if is_identity(other) else None


FOLDINGS: dict[Any, Folding] = {
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.add.Tensor: _sum,
    aten.add.Scalar: _sum,
    aten.sub.Tensor: _sum,
    aten.sub.Scalar: _sum,
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.pow.Tensor_Scalar: _power,
    aten.neg.default: _negation,
    aten.addcmul.default: _sum_of_product,
    aten.addmm.default: _sum_of_product,
    aten.addmv.default: _sum_of_product,
    aten.baddbmm.default: _sum_of_product,
    aten.select_backward.default: _put_in_zeros,
    aten.slice_backward.default: _put_in_zeros,
    aten.mm.default: _matrix_product,
}
