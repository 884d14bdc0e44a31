"""Rules of products: elementwise, of matrices, and convolutions, each with the sum of the products
of rows, 2 W[i, j] g(A[i], B[j])."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian.layer import ForwardLaplacian, is_followed, plus
from torchlayers.transforms.laplacian.linear import add, multilinear, of_matrix
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


def mul(layer: ForwardLaplacian, op: Any, x: Any, y: Any) -> LayerTensor:
    value = op(x.value, y.value if isinstance(y, LayerTensor) else y)
    if not is_followed(x):
        x, y = y, x
    if not isinstance(y, LayerTensor):
        return _times_constant(layer, value, x, y)
    if y.parts is None:
        return _times_constant(layer, value, x, y.value)
    partials = y.value, x.value
    return of_two(layer, value, x, y, partials, (None, 1.0, None))


def _times_constant(layer: ForwardLaplacian, value: Tensor, x: Any, factor: Any) -> LayerTensor:
    rows, laplacian = x.parts.rows, x.parts.laplacian
    if isinstance(rows, Diagonal) and value.shape != x.shape:
        rows = broadcast(rows, x.value, value.shape)
    elif not isinstance(rows, Diagonal):
        rows = aligned(rows, value.dim())
    pushed = None if laplacian is None else laplacian * factor
    return layer.result(value, scaled(rows, factor), pushed)


def div(
    layer: ForwardLaplacian, op: Any, x: Any, y: Any, *, rounding_mode: str | None = None
) -> Any:
    if rounding_mode is not None:
        keywords = {"rounding_mode": rounding_mode}
        return general.first_order(layer, op, x, y, **keywords)
    if not isinstance(y, LayerTensor):
        return _times_constant(layer, x.value / y, x, 1 / y)
    value = x.value / y.value
    inverse = _inverse(y.value, value)
    if y.parts is None:
        return _times_constant(layer, value, x, inverse)
    by_y = -value * inverse
    second = (None, -inverse * inverse, -2 * by_y * inverse)
    return of_two(layer, value, x, y, (inverse, by_y), second)


def _inverse(y: Tensor, quotient: Tensor) -> Tensor:
    """1 / y in the quotient's dtype. A number's reciprocal has the default dtype, and modes are
    called with the number itself, which has no reciprocal."""
    if y.dtype == quotient.dtype and y.dim() > 0:
        return y.reciprocal()
    one = torch.ones((), dtype=quotient.dtype, device=quotient.device)
    return one.expand(y.shape) / y


def of_two(
    layer: ForwardLaplacian,
    value: Tensor,
    x: LayerTensor,
    y: LayerTensor,
    first: tuple[Any, Any],
    second: tuple[Any, Any, Any],
) -> LayerTensor:
    """An elementwise function of two values, by its derivatives.

    Args:
        first: with respect to x and y.
        second: with respect to x twice, x and y, and y twice; None for zero.
    """
    ndim, shape = value.dim(), value.shape
    pairs = [(z, by) for z, by in ((x, first[0]), (y, first[1])) if z.parts is not None]
    rows: Rows | None = None
    laplacian: Tensor | None = None
    for z, by in pairs:
        term = z.parts.rows
        if isinstance(term, Diagonal) and z.value.shape == shape:
            term = term.scaled(by)
        else:
            term = aligned(dense(term, z.value), ndim) * by
        rows = term if rows is None else added(rows, term, value)
        if z.parts.laplacian is not None:
            laplacian = plus(laplacian, by * z.parts.laplacian)
    for z, by in ((x, second[0]), (y, second[2])):
        if by is not None and z.parts is not None:
            laplacian = plus(laplacian, by * layer.squares(z.parts.rows, z.value.shape))
    if second[1] is not None and len(pairs) == 2:
        mixed = _mixed(layer, x, y, ndim)
        laplacian = plus(laplacian, 2 * second[1] * mixed)
    if laplacian is not None and laplacian.shape != shape:
        laplacian = laplacian.expand(shape)
    assert rows is not None
    return layer.result(value, rows, laplacian)


def _mixed(layer: ForwardLaplacian, x: LayerTensor, y: LayerTensor, ndim: int) -> Tensor:
    """The sum of the products of the rows of x and of y."""
    if x.parts.rows is y.parts.rows:
        return layer.squares(x.parts.rows, x.value.shape)
    left, right = x.parts.rows, y.parts.rows
    return layer.products(dense(left, x.value), dense(right, y.value), ndim)


def times_number(layer: ForwardLaplacian, x: LayerTensor, factor: Any) -> LayerTensor:
    if isinstance(factor, (int, float)) and factor == 1:
        return x
    if x.parts is None:
        return layer.tensor(x.value * factor)
    rows, laplacian = x.parts.rows, x.parts.laplacian
    pushed = None if laplacian is None else laplacian * factor
    return layer.result(x.value * factor, scaled(rows, factor), pushed)


def mm(layer: ForwardLaplacian, op: Any, x: LayerTensor, y: LayerTensor) -> LayerTensor:
    """mm and bmm: the products of rows are summed in one product of longer matrices. mv and dot,
    too, if one factor is constant."""
    places = [i for i, z in enumerate((x, y)) if z.parts is not None]
    if len(places) < 2 or op not in (aten.mm.default, aten.bmm.default):
        result: LayerTensor = _multilinear(layer, op, x, y, places)
        return result
    left, right = dense(x.parts.rows, x.value), dense(y.parts.rows, y.value)
    rows = left @ y.value + x.value @ right
    # (k, ..., n, m) and (k, ..., m, p): the sum over k and m at once.
    wide = left.movedim(0, -2).flatten(-2)
    tall = layer.weighted(right).movedim(0, -3).flatten(-3, -2)
    laplacian = 2 * (wide @ tall)
    if x.parts.laplacian is not None:
        laplacian = laplacian + op(x.parts.laplacian, y.value)
    if y.parts.laplacian is not None:
        laplacian = laplacian + op(x.value, y.parts.laplacian)
    return layer.result(op(x.value, y.value), rows, laplacian)


def _affine(product: Any) -> Any:
    """The rule of ``beta * x + alpha * product(a, b)``."""

    def rule(
        layer: ForwardLaplacian, op: Any, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1
    ) -> Any:
        places = [i for i, z in enumerate((a, b)) if z.parts is not None]
        if x.parts is None and len(places) == 1 and alpha == 1:
            value = op(x.value, a.value, b.value, beta=beta)
            return _multilinear(layer, product, a, b, places, value)
        summand = times_number(layer, x, beta)
        term = times_number(layer, _product(layer, product, a, b, places), alpha)
        # The first operand determines the memory layout, as in the operator itself.
        if op is aten.addr.default:
            return _sum(layer, summand, term)
        return _sum(layer, term, summand)

    return rule


def _product(layer: ForwardLaplacian, op: Any, a: Any, b: Any, places: list[int]) -> Any:
    if not places:
        return layer.tensor(op(a.value, b.value))
    if op in (aten.mm.default, aten.bmm.default):
        return mm(layer, op, a, b)
    return _multilinear(layer, op, a, b, places)


def _multilinear(
    layer: ForwardLaplacian, op: Any, a: Any, b: Any, places: list[int], value: Any = None
) -> Any:
    if len(places) == 1 and op in (aten.mm.default, aten.mv.default, aten.dot.default):
        return of_matrix(layer, op, (a, b), places[0], value)
    return multilinear(layer, op, (a, b), {}, places, value)


def _sum(layer: ForwardLaplacian, x: LayerTensor, y: LayerTensor) -> Any:
    if x.parts is None and y.parts is None:
        return x.value + y.value
    return add(layer, aten.add.Tensor, x, y)


def embedding_bag(layer: ForwardLaplacian, op: Any, weight: Any, *args: Any) -> Any:
    """Sums of rows, linear in them (or in pieces: the largest), and in the per-sample weights."""
    weights = args[5] if len(args) > 5 else None
    if not is_followed(weights):
        return general.first_order(layer, op, weight, *args)
    places = [i for i, z in ((0, weight), (6, weights)) if is_followed(z)]
    plain = [arg.value if isinstance(arg, LayerTensor) else arg for arg in (weight, *args)]
    value, *others = op(*plain)
    result = multilinear(
        layer, lambda *tensors: op(*tensors)[0], (weight, *args), {}, places, value
    )
    return result, *others


addmm, addmv, baddbmm, addr = (
    _affine(product)
    for product in (aten.mm.default, aten.mv.default, aten.bmm.default, aten.outer.default)
)


def convolution(
    layer: ForwardLaplacian, op: Any, x: Any, weight: Any, bias: Any, *rest: Any
) -> Any:
    """convolution: bilinear in input and weight, plus a bias."""
    if bias is not None and bias.parts is not None:
        return general.second_order(layer, op, x, weight, bias, *rest)
    places = [i for i, z in enumerate((x, weight)) if z.parts is not None]
    value = op(x.value, weight.value, None if bias is None else bias.value, *rest)
    return multilinear(layer, op, (x, weight, None, *rest), {}, places, value)
