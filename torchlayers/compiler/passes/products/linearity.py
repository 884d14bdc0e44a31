"""Which arguments operators are linear in while the other arguments are constant."""

import functools
from typing import Any

from torch.fx import Node

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.layers.rule_table import facts, terms_of

PRODUCTS = {aten.mm.default, aten.bmm.default, aten.mv.default}
_QUOTIENT = aten.div.Tensor  # linear in the first argument, but not in the second


def linear_in(node: Node) -> tuple[int, ...]:
    """Returns the positions of the arguments that the node is linear in, each separately."""
    return linear_places(node.target)


@functools.cache
def linear_places(op: Any) -> tuple[int, ...]:
    """The same for an operator, as csrc/rules states it; none for other than ATen's."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return ()
    if [str(result.type) for result in schema_of(op).returns] != ["Tensor"]:
        return ()
    known = facts(op)
    if is_scaling(op):
        return (0, 1) if op is aten.mul.Tensor else (0,)
    if known["is_linear_together"]:
        return ()
    if known["is_linear"] and _takes_one_tensor(op):
        return (0,)
    return tuple(known["linear_in"])


@functools.cache
def is_scaling(op: Any) -> bool:
    """Whether an operator multiplies its first argument elementwise; mul.Tensor either."""
    if op in (aten.mul.Tensor, _QUOTIENT) or has_slope(op):
        return True
    is_linear = isinstance(op, OpOverload) and op.namespace == "aten" and facts(op)["is_linear"]
    return is_linear and facts(op)["elementwise_in"] == [0] and _takes_one_tensor(op)


@functools.cache
def has_slope(op: Any) -> bool:
    """Whether it is the backward operator of an activation: the arguments after the first give the
    slope."""
    if not isinstance(op, OpOverload) or not schema_of(op).name.endswith("_backward"):
        return False
    if facts(op)["elementwise_in"][:1] != [0]:
        return False
    term = terms_of(op).get(0)
    return term is not None and not term.reads_argument


def _takes_one_tensor(op: OpOverload) -> bool:
    return sum("Tensor" in str(a.type) for a in schema_of(op).arguments) == 1 and (
        str(schema_of(op).arguments[0].type) == "Tensor"
    )
