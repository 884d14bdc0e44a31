"""Rules of elementwise operators: the first derivative is the operator's term in csrc/rules, the
second is that term's tangent."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.core.tensors.storage import without_shared_elements
from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian.layer import ForwardLaplacian, is_followed, plus
from torchlayers.transforms.laplacian.products import of_two
from torchlayers.transforms.laplacian.rows import (
    Diagonal,
    Rows,
    added,
    aligned,
    broadcast,
    dense,
    scaled,
)
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.rule_table import facts, terms_of
from torchlayers.transforms.layers.slopes import (
    backward_of,
    backward_of_argument,
    slope_at,
    slope_of,
)


class Slopes:
    """The derivatives of one call of an elementwise operator.

    Attributes:
        results: of the operator on the values; the first one is differentiated.
    """

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._op = op
        self._terms = terms_of(op)
        self._args = tuple([_value(x) for x in args])
        self._kwargs = kwargs
        if kwargs:
            self._kwargs = pytree.map_tensors(_value, kwargs)
        self.results: Any = op(*self._args, **self._kwargs)
        is_single = isinstance(self.results, Tensor)
        self._outputs: list[Tensor] = [self.results] if is_single else list(self.results)

    @property
    def value(self) -> Tensor:
        return self._outputs[0]

    def closed_form(self, place: int) -> tuple[Any, Any] | None:
        """Both derivatives, if they follow from the value, or if csrc/rules states the derivative
        of torch's operator that multiplies by the first one: that is the second."""
        if place:
            return None
        if (slope := facts(self._op)["slope"]) is not None:
            return _by_result(self.value, *slope)
        if (formulas := CLOSED_FORMS.get(self._op)) is not None:
            return formulas(self.value, *self._args)
        if (backward := backward_of_argument(self._op)) is None or self.value.is_complex():
            return None
        first, one = self.first(0), self._one(0)
        return first, terms_of(backward)[1](one, (one, *self._args), self._kwargs, [first])

    def reads_result(self, place: int) -> bool:
        return self._terms[place].reads_result

    def first(self, place: int) -> Any:
        """The derivative with respect to an argument; 1 for one, None for zero."""
        one = self._one(place)
        slope = self._terms[place](one, self._args, self._kwargs, self._outputs)
        return 1 if slope is one else slope

    def second(self, place: int, along: dict[int, Tensor], of_value: Tensor | None) -> Any:
        """That derivative, and its tangent along those of the arguments and the value."""
        args = list(self._args)
        for i, tangent in along.items():  # the operator may broadcast
            if args[i].shape != tangent.shape or not args[i].is_contiguous():
                args[i] = without_shared_elements(args[i].expand(tangent.shape))
        term, one = self._terms[place], self._one(place)
        return term.push(one, tuple(args), self._kwargs, self._outputs, along, of_value)

    def _one(self, place: int) -> Tensor:
        x = self._args[place]
        return torch.ones((), dtype=x.dtype, device=x.device)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, LayerTensor) else x


def elementwise(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    places = [i for i, x in enumerate(args) if is_followed(x)]
    terms = terms_of(op)
    is_derived = not any(map(is_followed, kwargs.values())) and all(
        i in terms and (terms[i].is_analytic or not args[i].is_complex()) for i in places
    )
    if not is_derived:
        return general.second_order_of_each(layer, op, *args, **kwargs)
    slopes = Slopes(op, args, kwargs)
    if not places:
        return slopes.results
    pairs = [(i, args[i]) for i in places]
    is_curved = not facts(op)["is_piecewise_linear"]
    by = _of_one if len(pairs) == 1 else _of_several
    result = by(layer, slopes, pairs, is_curved)
    if isinstance(slopes.results, Tensor):
        return result
    return result, *slopes.results[1:]


def _of_one(
    layer: ForwardLaplacian, slopes: Slopes, pairs: list[tuple[int, LayerTensor]], is_curved: bool
) -> Tensor:
    ((place, x),) = pairs
    value, rows, laplacian = slopes.value, x.parts.rows, x.parts.laplacian
    first = curvature = None
    known = slopes.closed_form(place) if is_curved else None
    if known is not None:
        first, factor = known
        curvature = factor * layer.squares(rows, x.value.shape)
    elif not is_curved or slopes.reads_result(place):
        first = slopes.first(place)
    if is_curved and known is None:
        squares = layer.squares(rows, x.value.shape).expand(value.shape)
        of_value = first * squares if first is not None and slopes.reads_result(place) else None
        pushed, curvature = slopes.second(place, {place: squares}, of_value)
        first = pushed if first is None else first
    if first is None:
        return value
    total = plus(None if laplacian is None else _times(laplacian, first), curvature)
    return layer.result(value, _scaled_rows(x, first, value), _fitted(total, value))


def _of_several(
    layer: ForwardLaplacian, slopes: Slopes, pairs: list[tuple[int, LayerTensor]], is_curved: bool
) -> Tensor:
    value = slopes.value
    firsts = {place: slopes.first(place) for place, _ in pairs}
    rows: Rows | None = None
    total: Tensor | None = None
    for place, x in pairs:
        first = firsts[place]
        if first is None:
            continue
        scaled_rows = _scaled_rows(x, first, value, is_deferred=False)
        rows = scaled_rows if rows is None else added(rows, scaled_rows, value)
        if x.parts.laplacian is not None:
            total = plus(total, _times(x.parts.laplacian, first))
    if is_curved:
        products = _products(layer, pairs, value)
        for place, _ in pairs:
            along = {other: products[place, other] for other, _ in pairs}
            total = plus(total, _curvature(slopes, place, along, firsts))
    return value if rows is None else layer.result(value, rows, _fitted(total, value))


def _curvature(
    slopes: Slopes, place: int, along: dict[int, Tensor], firsts: dict[int, Any]
) -> Tensor | None:
    """The sum over the other arguments of the second derivatives times the products of rows."""
    of_value: Tensor | None = None
    if slopes.reads_result(place):
        for other, first in firsts.items():
            if first is not None:
                of_value = plus(of_value, along[other] * first)
    return slopes.second(place, along, of_value)[1]  # type: ignore[no-any-return]


def _products(
    layer: ForwardLaplacian, pairs: list[tuple[int, LayerTensor]], value: Tensor
) -> dict[tuple[int, int], Tensor]:
    """The sums of the products of the rows of any two arguments, of the value's shape."""
    products = {}
    for (i, x), (j, y) in itertools.combinations_with_replacement(pairs, 2):
        if x.parts.rows is y.parts.rows:
            product = layer.squares(x.parts.rows, x.value.shape)
        else:
            left, right = dense(x.parts.rows, x.value), dense(y.parts.rows, y.value)
            product = layer.products(left, right, value.dim())
        products[i, j] = products[j, i] = product.expand(value.shape)
    return products


def _scaled_rows(x: LayerTensor, factor: Any, value: Tensor, is_deferred: bool = True) -> Any:
    rows = x.parts.rows
    if isinstance(rows, Diagonal) or not isinstance(factor, Tensor) or not factor.dim():
        return scaled(broadcast(rows, x.value, value.shape), factor)
    if is_deferred:
        return lambda: _expanded(aligned(rows, value.dim()) * factor, value)
    return _expanded(aligned(rows, value.dim()) * factor, value)


def _expanded(rows: Tensor, value: Tensor) -> Tensor:
    return rows if rows.shape[1:] == value.shape else rows.expand(rows.shape[0], *value.shape)


def _times(laplacian: Tensor, factor: Any) -> Tensor:
    return laplacian * factor if isinstance(factor, Tensor) else laplacian


def _fitted(laplacian: Tensor | None, value: Tensor) -> Tensor | None:
    if laplacian is None or laplacian.shape == value.shape:
        return laplacian
    return laplacian.expand(value.shape)


def through_result(layer: ForwardLaplacian, op: Any, x: LayerTensor) -> Any:
    """An operator whose derivative is a + b y + c y^2, by torch's operator that multiplies by it;
    the second derivative is b + 2 c y times the first.

    It reads and writes the rows once, where a separate derivative takes several passes: at width 64
    it takes a third of the time of the derived rule.
    """
    first = backward_of(op)
    if first is None or x.is_complex():
        return elementwise(layer, op, x)
    _, b, c = slope_of(op)
    y = op(x.value)
    rows, laplacian = x.parts.rows, x.parts.laplacian
    squares = layer.squares(rows, x.value.shape)
    fixed = laplacian if not b else plus(laplacian, b * squares)
    bent = 2 * c * (y * squares) if fixed is None else torch.addcmul(fixed, y, squares, value=2 * c)
    if isinstance(rows, Diagonal):
        return layer.result(y, rows.replaced(first(rows.scale, y)), first(bent, y))
    return layer.result(y, lambda: first(rows, y.unsqueeze(0)), first(bent, y))


def times_slope(layer: ForwardLaplacian, op: Any, g: LayerTensor, y: LayerTensor) -> Any:
    """The operator that such a rule calls: g (a + b y + c y^2).

    With this rule by hand a Laplacian's Laplacian takes 0.9 of the time.
    """
    if y.is_complex():
        return elementwise(layer, op, g, y)
    differentiated = getattr(aten, op.overloadpacket.__name__.removesuffix("_backward")).default
    a, b, c = slope_of(differentiated)
    bend = y.value * (2 * c) + b
    first = slope_at(y.value, a, b, c), g.value * bend
    return of_two(layer, op(g.value, y.value), g, y, first, (None, bend, g.value * (2 * c)))


def _by_result(y: Tensor, a: float, b: float, c: float) -> tuple[Tensor, Tensor]:
    """Both derivatives of y, of which the first is a + b y + c y^2."""
    slope = slope_at(y, a, b, c)
    if not c:
        return slope, slope if b == 1 else slope * b
    factor = y * (2 * c)
    return slope, slope * (factor + b if b else factor)


# What follows is by hand because it takes two thirds of the derived rules' time in small networks,
# and is common there; tests/transforms/laplacian/test_elementwise.py compares it with the derived.
# The first and second derivative, from the value and the arguments.
CLOSED_FORMS: dict[Any, Callable[..., tuple[Any, Any] | None]] = {
    aten.cos.default: lambda y, x: (-torch.sin(x), -y),
    aten.pow.Tensor_Scalar: lambda y, x, power: (2 * x, 2) if power == 2 else None,
    aten.sin.default: lambda y, x: (torch.cos(x), -y),
}
