"""Each element of the result depends on the elements at its place."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from torchlayers.core import operator_schema, pytree
from torchlayers.core.operators import aten
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import keyword_names
from torchlayers.transforms.layers.rule_table import facts, terms_of
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, as_one_table, union
from torchlayers.transforms.sparse.detection.layer import (
    Call,
    Sparsity,
    broadcast_shapes,
    plain_value,
    rule,
)


@rule(
    "constant",
    aten.bernoulli,
    aten.bincount,
    aten.binomial,
    aten.detach,
    aten.histc,
    aten.multinomial,
    aten.poisson,
)
def without_derivative(call: Call) -> Any:
    """The values differ between inputs, all the same."""
    if call.layer.is_local:
        return None
    if call.op.overloadpacket in _SIZED_BY_VALUES:
        call.layer.note_read()
    parts = call.parts()

    def marked(value: Tensor) -> IndexSets:
        try:
            fits = broadcast_shapes(*(part.shape for part in parts), value.shape)
        except RuntimeError:
            fits = None
        if fits == value.shape:
            return call.layer.marked(union(parts, value.shape))
        mark = call.layer.count + 1
        return IndexSets(torch.full(value.shape, mark), call.layer.table)

    if isinstance(call.value, Tensor):
        return marked(call.value)
    return [marked(value) for value in call.value]


# The shapes of their results depend on values.
_SIZED_BY_VALUES = (
    aten._unique,
    aten._unique2,
    aten.nonzero,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.unique_dim_consecutive,
)


@rule(
    "elementwise",
    "pointwise",
    aten._conj,
    aten._neg_view,
    aten._standard_gamma,
    aten.native_dropout_backward,
    aten.rrelu_with_noise_backward,
)
def pointwise(call: Call) -> Any:
    """Of several results, such as frexp's, each."""
    sets = _pointwise(call)
    return sets if isinstance(call.value, Tensor) else [sets] * len(call.value)


def _pointwise(call: Call) -> IndexSets | None:
    parts = []
    for name, x in call.arguments.items():
        sets = call.sets(x)
        if sets is None:
            continue
        if _selects(call, name):
            if call.layer.is_local:
                continue
            sets = call.layer.marked(sets)
        elif call.layer.is_local:
            sets = sets.expand(call.shape).without(_zero_slopes(call, name))
        parts.append(sets)
    return union(parts, call.shape) if parts else None


def _selects(call: Call, name: str) -> bool:
    """Whether the derivative by an argument is zero everywhere, which selects between values."""
    known = facts(call.op)
    if known["is_linear"] or not known["is_piecewise_linear"]:
        return False
    place = call.names.index(name)
    if place not in known["elementwise_in"]:
        return True
    term = terms_of(call.op)[place]
    # Of any numbers: the term is absent, not zero at these.
    args, kwargs = pytree.map_tensors(_number_like, (call.args, call.kwargs))
    results = [_number_like(x) for x in pytree.leaves(call.value)]
    return term(_number_like(call[name]), args, kwargs, results) is None


def _plain(x: Tensor) -> Any:
    return plain_value(x.value if isinstance(x, LayerTensor) else x)


def _number_like(x: Tensor) -> Tensor:
    return torch.ones((), dtype=x.dtype)


def _zero_slopes(call: Call, name: str) -> Tensor | None:
    """Where the derivative by an argument is zero at these values; None if that is not known."""
    if operator_schema.is_random(call.op):  # it would draw again
        return None
    values = {}
    for parameter, x in call.arguments.items():
        values[parameter] = plain_value(x.value) if isinstance(x, LayerTensor) else x
        if values[parameter] is None and x is not None:
            return None
    value = values[name]
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    place = call.names.index(name)
    if (term := terms_of(call.op).get(place)) is not None:
        outputs = [plain_value(x) for x in pytree.leaves(call.value)]
        results = [x for x in outputs if x is not None]
        if len(results) < len(outputs):
            return None
        args, kwargs = pytree.map_tensors(_plain, (call.args, call.kwargs))
        slope = term(torch.ones((), dtype=value.dtype), args, kwargs, results)
        return torch.ones(call.shape, dtype=torch.bool) if slope is None else slope == 0
    # The user's hooks on saved tensors, such as those of a checkpoint, are not for these.
    with torch.enable_grad(), saved_tensors_hooks(_same, _same):
        values[name] = x = value.expand(call.shape).clone().requires_grad_()
        keywords = keyword_names(call.op)
        args = [value for parameter, value in values.items() if parameter not in keywords]
        try:
            y = call.op(
                *args,
                **{name: value for name, value in values.items() if name in keywords},
            )
            y = y if isinstance(y, Tensor) else y[0]
            if not y.requires_grad or not y.is_floating_point():
                return None
            (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), materialize_grads=True)
        except (RuntimeError, NotImplementedError):  # no derivative of its own, or not by this one
            return None
    return slope == 0


def _same(x: Tensor) -> Tensor:
    return x


@rule(aten.angle, aten.sgn)
def constant_of_reals(call: Call) -> Any:
    return _pointwise(call) if call["self"].is_complex() else without_derivative(call)


@Sparsity.rule(aten._local_scalar_dense, aten.equal)
def read(layer: Sparsity, op: Any, *args: Any) -> Any:
    """Python reads a value."""
    if any(x.parts is not None for x in args):
        layer.note_read()
    return layer.send_down(op, args, {})


@rule(aten.zero, aten.fill.Scalar)
def constant(call: Call) -> None:
    return None


@rule(aten.mul)
def mul(call: Call) -> IndexSets | None:
    return _product(call, call["self"], call["other"])


def _product(call: Call, x: Any, y: Any) -> IndexSets | None:
    """A factor that is zero for all inputs removes the other's sets."""
    parts = []
    for one, other in ((x, y), (y, x)):
        sets = call.sets(one)
        if sets is not None:
            parts.append(sets.expand(call.shape).without(call.zeros(other)))
    return union(parts, call.shape) if parts else None


def _quotient(call: Call, x: Any, y: Any) -> IndexSets | None:
    parts = []
    if (sets := call.sets(x)) is not None:
        parts.append(sets)
    if (sets := call.sets(y)) is not None:
        parts.append(sets.expand(call.shape).without(call.zeros(x)))
    return union(parts, call.shape) if parts else None


@rule(aten.div)
def div(call: Call) -> Any:
    if call.arguments.get("rounding_mode") is not None:
        return without_derivative(call)
    return _quotient(call, call["self"], call["other"])


@rule(aten.addcmul, aten.addcdiv)
def addcmul(call: Call) -> IndexSets | None:
    term = _product if call.op.overloadpacket == aten.addcmul else _quotient
    return _sum(call, call.sets("self"), term(call, call["tensor1"], call["tensor2"]))


def _sum(call: Call, *parts: IndexSets | None) -> IndexSets | None:
    present = [part for part in parts if part is not None]
    return union(present, call.shape) if present else None


@rule(aten.pow)
def power(call: Call) -> IndexSets | None:
    base, exponent = call["self"], call["exponent"]
    parts = []
    if (sets := call.sets(base)) is not None:
        parts.append(sets.expand(call.shape).without(call.zeros(exponent)))
    if (sets := call.sets(exponent)) is not None:
        parts.append(sets)
    return union(parts, call.shape) if parts else None


@rule(aten.where.self)
def where(call: Call) -> IndexSets | None:
    return _chosen(call, call["condition"], call["self"], call["other"])


@rule(aten.masked_fill)
def masked_fill(call: Call) -> IndexSets | None:
    return _chosen(call, call["mask"], call["value"], call["self"])


def _chosen(call: Call, condition: Any, x: Any, y: Any) -> IndexSets | None:
    """Of x where the condition is true, else of y; of both where the condition varies."""
    shape = call.shape
    empty = IndexSets(torch.zeros((), dtype=torch.int64), call.layer.table)
    parts = [call.sets(x) or empty, call.sets(y) or empty]
    known = call.known(condition)
    if known is not None:
        one, other = as_one_table(parts)
        return IndexSets(torch.where(known.bool(), one.ids, other.ids).expand(shape), one.table)
    varying = call.sets(condition)
    if varying is None:  # batched below this layer
        return union(parts, shape)
    both = union([*parts, varying], shape)
    value = plain_value(condition.value)
    if value is None:
        return both
    # Elements of the condition that do not vary choose as above.
    one, other, either = as_one_table([part.expand(shape) for part in (*parts, both)])
    ids = torch.where(value.bool(), one.ids, other.ids)
    return IndexSets(torch.where(varying.ids == 0, ids, either.ids), either.table)


@rule(aten.native_dropout)
def native_dropout(call: Call) -> Any:
    return call.sets("input"), None
