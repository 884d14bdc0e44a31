"""Linear operators act on each coefficient, constants have none."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jet.functions import where
from torchlayers.transforms.jet.layer import Call, Jet, rule
from torchlayers.transforms.jet.series import Series, as_series
from torchlayers.transforms.layers.rule_table import facts

aten: Any = torch.ops.aten


@Jet.rule(
    "constant",
    aten.ceil,
    aten.detach,
    aten.fill.Scalar,
    aten.floor,
    aten.floor_divide,
    aten.round,
    aten.sign,
    aten.trunc,
    aten.zero,
)
def constant(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    return layer.send_down(op, args, kwargs)


@Jet.rule("linear")
def linear(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """By what torchlayers knows of the operator (csrc/rules/)."""
    call = Call(layer, op, args, kwargs, facts(op)["linear_in"])
    value = call.value()
    if call.is_constant:
        return value
    is_joint = facts(op)["is_linear_together"] or len(call.operands) == 1
    return layer.results(value, call.jointly_linear(value) if is_joint else call.multilinear())


@Jet.rule(
    aten._values,
    aten.alias,
    aten.as_strided,
    aten.cat,
    aten.complex,
    aten.mean,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.narrow_copy,
    aten.neg,
    aten.split,
    aten.split_with_sizes,
    aten.stack,
    aten.sum,
    aten.unbind,
    aten.unsafe_split,
    aten.unsafe_split_with_sizes,
    aten.values,
)
def jointly_linear(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Linear in all tensors together."""
    call = Call(layer, op, args, kwargs, range(len(args)))
    value = call.value()
    return value if call.is_constant else layer.results(value, call.jointly_linear(value))


@rule(aten.add)
def add(value: Tensor, x: Any, y: Any, alpha: Any = 1) -> Series:
    return x + y * alpha  # type: ignore[no-any-return]


@rule(aten.sub)
def sub(value: Tensor, x: Any, y: Any, alpha: Any = 1) -> Series:
    return x - y * alpha  # type: ignore[no-any-return]


@rule(aten.rsub)
def rsub(value: Tensor, x: Any, y: Any, alpha: Any = 1) -> Series:
    return y - x * alpha  # type: ignore[no-any-return]


@rule(aten.where.self)
def where_self(value: Tensor, condition: Series, x: Any, y: Any) -> Series:
    return where(condition[0], as_series(x), as_series(y))


@rule(aten.masked_fill.Scalar)
def masked_fill(value: Tensor, x: Series, mask: Series, number: Any) -> Series:
    return x.map(lambda c: c.masked_fill(mask[0], 0))


@rule(aten.masked_fill.Tensor)
def masked_fill_tensor(value: Tensor, x: Series, mask: Series, filling: Series) -> Series:
    return where(mask[0], filling, x)


@rule(aten.constant_pad_nd)
def constant_pad_nd(value: Tensor, x: Series, pad: list[int], number: Any = 0) -> Series:
    return x.map(lambda c: aten.constant_pad_nd(c, pad, 0))


@rule(aten.nll_loss_forward, aten.nll_loss2d_forward)
def nll_loss(
    value: Any, x: Series, target: Series, weight: Series | None, reduction: int, ignored: int
) -> tuple[Series | None, ...]:
    loss = aten.nll_loss_forward if x[0].dim() <= 2 else aten.nll_loss2d_forward
    weights = None if weight is None else weight[0]
    return x.map(lambda c: loss(c, target[0], weights, reduction, ignored)[0]), None


@Jet.rule(aten._embedding_bag_forward_only)
def embedding_bag(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """By the operator that returns what derivatives need."""
    return layer.without_rule(aten._embedding_bag.default, *args, **kwargs)
