"""Linear and bilinear operators act on coefficients, constants have none."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.transforms.jet.functions import where
from torchlayers.transforms.jet.layer import Call, Jet, in_cpp, rule, series_of
from torchlayers.transforms.jet.series import Series, as_series, bilinear
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.memory_layout import laid_out
from torchlayers.transforms.layers.rule_table import defaults, facts


@Jet.rule("constant", aten.detach)
@in_cpp("constant")
def constant(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    return layer.send_down(op, args, kwargs)


@functools.cache
def _returns_one_tensor(op: Any) -> bool:
    returns = schema_of(op).returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)


def of_one(
    layer: Jet,
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    places: Sequence[int],
    is_joint: bool,
) -> Any:
    """The result of an operator that is linear at these places, if one tensor is not a constant and
    the operator returns one tensor; otherwise None. Most calls are such ones.

    If it is linear in these places together, a coefficient is not what it makes of a coefficient
    and a constant, for which zeros stand: None, too."""
    place = -1
    constants = 0  # at the places
    plain = list(args)
    for i, arg in enumerate(args):
        if isinstance(arg, LayerTensor):
            if arg.parts is not None:
                if place >= 0 or i not in places:
                    return None
                place = i
            elif i in places:
                constants += 1
            plain[i] = arg.value
        elif isinstance(arg, list) and any(isinstance(element, Tensor) for element in arg):
            return None
    if place < 0 or (is_joint and constants) or not _returns_one_tensor(op):
        return None
    if kwargs and any(isinstance(arg, Tensor) for arg in kwargs.values()):
        return None
    coefficients: list[Any] = [op(*plain, **kwargs)]
    for coefficient in args[place].parts:
        plain[place] = coefficient
        coefficients.append(None if coefficient is None else op(*plain, **kwargs))
    return layer.joined(coefficients)


@Jet.rule(aten.linear)
def affine_map(layer: Jet, op: Any, x: LayerTensor, weight: LayerTensor, bias: Any = None) -> Any:
    """Of a constant weight and bias; otherwise it is decomposed."""
    if x.parts is None or weight.parts is not None or (bias is not None and bias.parts is not None):
        return NotImplemented
    w = weight.value
    value = op(x.value, w, None if bias is None else bias.value)
    return layer.joined([value, *(None if c is None else op(c, w) for c in x.parts)])


@Jet.rule("contraction")
@in_cpp("linear")
def contraction(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """A product of two tensors, and ``beta`` times a third plus such a product."""
    known = facts(op)
    if len(args) == 2 == len(known["linear_in"]):
        return _product(layer, op, *args)
    if known["linear_in"]:
        return linear(layer, op, *args, **kwargs)
    if not known["is_product"] or "beta" not in defaults(op):
        return layer.by_nested_jvps(op, *args, **kwargs)
    call = Call(layer, op, args, kwargs)
    value = call.value
    if call.is_constant:
        return value
    (added, left, right), options = call.as_series()
    rest = {**options, "beta": 0}
    product = bilinear(lambda a, b: op(added[0], a, b, **rest), left, right)
    return layer.results(value, added * options.get("beta", 1) + product)


def _product(layer: Jet, op: Any, x: LayerTensor, y: LayerTensor) -> Any:
    value = op(x.value, y.value)
    if y.parts is None and x.parts is not None:
        factor = y.value
        return layer.joined([value, *(None if c is None else op(c, factor) for c in x.parts)])
    if x.parts is None and y.parts is not None:
        factor = x.value
        return layer.joined([value, *(None if c is None else op(factor, c) for c in y.parts)])
    return layer.results(value, bilinear(op, series_of(x), series_of(y)))


@Jet.rule("linear")
@in_cpp("linear")
def linear(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """By what torchlayers knows of the operator (csrc/rules/)."""
    known = facts(op)
    result = of_one(layer, op, args, kwargs, known["linear_in"], known["is_linear_together"])
    if result is not None:
        return result
    call = Call(layer, op, args, kwargs, known["linear_in"])
    value = call.value
    if call.is_constant:
        return value
    is_joint = known["is_linear_together"] or len(call.series) == 1
    return layer.results(value, call.jointly_linear(value) if is_joint else call.multilinear())


@Jet.rule(aten._values, aten.alias, aten.values)
def jointly_linear(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Linear in all tensors together."""
    result = of_one(layer, op, args, kwargs, range(len(args)), is_joint=True)
    if result is not None:
        return result
    call = Call(layer, op, args, kwargs, range(len(args)))
    value = call.value
    return value if call.is_constant else layer.results(value, call.jointly_linear(value))


@Jet.rule(aten.view.default)
@in_cpp("view")
def view(layer: Jet, op: Any, x: LayerTensor, size: Sequence[int]) -> Any:
    """A coefficient is reshaped: its memory layout may not allow the view."""
    value = op(x.value, size)
    if x.parts is None:
        return value
    return layer.joined([value, *(None if c is None else c.reshape(size) for c in x.parts)])


@Jet.rule(aten.view_as_complex, aten.as_strided)
def in_memory(layer: Jet, op: Any, x: LayerTensor, *args: Any) -> Any:
    """Of coefficients in a memory layout that suits the operator."""
    value = op(x.value, *args)
    if x.parts is None:
        return value
    coefficients = [None if c is None else laid_out(op, x.value, c, args) for c in x.parts]
    return layer.joined([value, *(None if c is None else op(c, *args) for c in coefficients)])


@rule(aten.where.self, step="sum")
def where_self(value: Tensor, condition: Series, x: Any, y: Any) -> Series:
    return where(condition[0], as_series(x), as_series(y))


@rule(aten.masked_fill.Scalar, step="sum")
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


def _value(x: Any) -> Any:
    return x.value if isinstance(x, LayerTensor) else x
