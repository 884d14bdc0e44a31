"""Seals operators that read or return tensors without strides, so that no pass recognizes them.

The passes query strides, and replace operators by others that torch has for strided tensors only. A
sparse tensor raises an error for its strides, or reports strides of 0, as if it were expanded.
Sealed operators are kept as captured, except that equal ones are shared.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import has_strides, value


class SealedOperator(OpOverload):
    """The operator with its schema and effects, but equal to no operator in a pass's tables."""

    def __init__(self, operator: Any) -> None:
        vars(self).update(vars(operator))
        self.operator = operator
        self._tags = [tag for tag in operator.tags if tag is not torch.Tag.pointwise]


_sealed = functools.cache(SealedOperator)


def seal(graph: Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and _meets_no_strides(node):
            node.target = _sealed(node.target)


def unseal(graph: Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, SealedOperator):
            node.target = node.target.operator


def first_without_strides(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if _lacks_strides(node)), None)


def _meets_no_strides(node: Node) -> bool:
    return any(map(_lacks_strides, (node, *node.all_input_nodes)))


def _lacks_strides(node: Node) -> bool:
    fake = value(node)
    several: Iterable[Any] = fake if isinstance(fake, (list, tuple)) else (fake,)
    return any(isinstance(result, Tensor) and not has_strides(result) for result in several)
