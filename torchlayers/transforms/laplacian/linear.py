"""Rules of linear and multilinear operators: the operator on the rows, and on the Laplacian."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import functorch, is_wrapped
from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian.layer import (
    Call,
    ForwardLaplacian,
    is_followed,
    on_rows,
    plus,
)
from torchlayers.transforms.laplacian.rows import (
    Rows,
    added,
    broadcast,
    dense,
    resolved,
    scaled,
)
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.rule_table import facts

# Linear in their only tensor, with the same elements in the same order.
KEEP_ORDER = [*(aten.view, aten._unsafe_view, aten.unsqueeze, aten.squeeze, aten.clone, aten.alias)]


def linear(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """By the positions in which the operator is linear, as csrc/rules says."""
    known = facts(op)
    call = Call(layer, op, args, kwargs)
    if not call.operands:
        return call.value
    if known["is_linear_together"]:
        return general.first_order(layer, op, *args, **kwargs)
    places = [i for i in known["linear_in"] or (0,) if i < len(args) and is_followed(args[i])]
    if len(places) != len(call.operands):
        return general.second_order(layer, op, *args, **kwargs)
    return multilinear(layer, op, args, kwargs, places)


def multilinear(
    layer: ForwardLaplacian,
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    places: Sequence[int],
    value: Any = None,
) -> Any:
    """Linear in each of the arguments at these places, while the others are fixed.

    Args:
        value: the result's value, if it is not the operator's.
    """
    plain = [_plain(arg) for arg in args]
    named = {name: _plain(arg) for name, arg in kwargs.items()}

    def op_with(replaced: dict[int, Tensor]) -> Any:
        return op(*(replaced.get(i, arg) for i, arg in enumerate(plain)), **named)

    if value is None:
        value = op_with({})
    if len(places) == 1:
        return _linear_in_one(layer, value, op_with, places[0], args[places[0]])
    rows: Tensor | None = None
    laplacian: Tensor | None = None
    for place in places:
        x = args[place]
        term = on_rows(lambda row, place=place: op_with({place: row}), dense(x.parts.rows, x.value))
        rows = plus(rows, term)
        if x.parts.laplacian is not None:
            laplacian = plus(laplacian, op_with({place: x.parts.laplacian}))
    for i, first in enumerate(places):
        for second in places[i + 1 :]:
            both = on_rows(
                lambda a, b, first=first, second=second: op_with({first: a, second: b}),
                dense(args[first].parts.rows, args[first].value),
                layer.weighted(dense(args[second].parts.rows, args[second].value)),
            )
            laplacian = plus(laplacian, 2 * both.sum(0))
    assert rows is not None
    return layer.result(value, rows, laplacian)


def _linear_in_one(
    layer: ForwardLaplacian, value: Any, op_with: Any, place: int, x: LayerTensor
) -> Any:
    parts, laplacian = x.parts, x.parts.laplacian
    pushed = None if laplacian is None else op_with({place: laplacian})
    if isinstance(pushed, Tensor):
        pushed = resolved(pushed)

    def on_row(row: Tensor) -> Any:
        return op_with({place: row})

    pushed_rows: Any
    if parts.are_dense:
        if isinstance(value, Tensor):
            return layer.result(value, lambda: resolved(on_rows(on_row, parts.rows)), pushed)
        pushed_rows = on_rows(on_row, parts.rows)
    elif parts.rows.scale.is_complex():  # view_as_real is linear for real factors alone
        pushed_rows = on_rows(on_row, dense(parts.rows, x.value))
    else:
        rows = parts.rows
        unscaled = on_rows(on_row, rows.identity())
        pushed_rows = pytree.map_tensors(lambda leaf: rows.within(rows.times_scale(leaf)), unscaled)
    if isinstance(value, Tensor):
        return layer.result(value, resolved(pushed_rows), pushed)
    columns = [None] * len(value) if pushed is None else pushed
    return tuple(
        layer.result(leaf, resolved(rows), None if column is None else resolved(column))
        for leaf, rows, column in zip(value, pushed_rows, columns, strict=True)
    )


def on_all_rows(
    layer: ForwardLaplacian,
    value: Tensor,
    x: LayerTensor,
    on_rows: Callable[[Tensor], Tensor],
    on_column: Callable[[Tensor], Tensor],
) -> LayerTensor:
    """The result of an operator that is linear in x, by what it does to all rows at once.

    It costs fewer operators than the same under vmap.
    """
    parts, laplacian = x.parts, x.parts.laplacian
    pushed = None if laplacian is None else on_column(laplacian)
    if parts.are_dense:
        return layer.result(value, lambda: on_rows(parts.rows), pushed)
    rows = parts.rows
    pushed_rows = rows.within(rows.times_scale(on_rows(rows.identity())))
    return layer.result(value, pushed_rows, pushed)


def keep_order(layer: ForwardLaplacian, op: Any, x: LayerTensor, *args: Any, **kwargs: Any) -> Any:
    value = op(x.value, *args, **kwargs)
    parts, laplacian, shape = x.parts, x.parts.laplacian, value.shape
    if op is aten.clone.default:
        return layer.result(value, parts.rows, laplacian)
    pushed = None if laplacian is None else laplacian.reshape(shape)
    if parts.are_dense:
        return layer.result(value, lambda: _reshaped(parts.rows, shape), pushed)
    return layer.result(value, parts.rows._replace(scale=parts.rows.scale.reshape(shape)), pushed)


def _reshaped(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.reshape(rows.shape[0], *shape)


def transpose(layer: ForwardLaplacian, op: Any, x: LayerTensor, *args: Any) -> Any:
    """t, transpose and permute."""
    ndim = x.dim()
    if args and not isinstance(args[0], int):
        order = [dim % ndim for dim in args[0]]
    else:
        order = list(range(ndim))
        first, second = args or ((0, 1) if ndim == 2 else (0, 0))
        if ndim:
            order[first], order[second] = order[second], order[first]
    row_dims = [0, *(dim + 1 for dim in order)]
    value = op(x.value, *args)
    return on_all_rows(
        layer, value, x, lambda rows: rows.permute(row_dims), lambda column: column.permute(order)
    )


def total(layer: ForwardLaplacian, op: Any, x: LayerTensor, *args: Any, **dtype: Any) -> Any:
    """sum and mean."""
    value, ndim = op(x.value, *args, **dtype), x.dim()
    if not ndim:
        return layer.result(value, x.parts.rows, x.parts.laplacian)
    dims, keepdim = (*args, None, False)[:2] if len(args) < 2 else args
    over = [dim % ndim for dim in dims or range(ndim)]
    row_dims = [dim + 1 for dim in over]
    reduce: Any = torch.sum if op.overloadpacket == aten.sum else torch.mean
    return on_all_rows(
        layer,
        value,
        x,
        lambda rows: reduce(rows, row_dims, bool(keepdim), **dtype),
        lambda column: reduce(column, over, bool(keepdim), **dtype),
    )


def affine_map(
    layer: ForwardLaplacian, op: Any, x: LayerTensor, weight: LayerTensor, bias: Any = None
) -> Any:
    """linear, of a constant weight and bias; otherwise it is decomposed."""
    is_constant = weight.parts is None and weight.layout == torch.strided
    if x.parts is None or not is_constant or is_followed(bias):
        return NotImplemented
    w, b = weight.value, None if bias is None else bias.value

    def product(rows: Tensor) -> Tensor:
        return torch.nn.functional.linear(rows, w)

    parts, laplacian = x.parts, x.parts.laplacian
    if laplacian is not None and parts.are_dense and _is_dominated_by(w, x.value, parts.rows):
        value, rows, column = _at_once(product, x.value, parts.rows, laplacian)
        return layer.result(value if b is None else value + b, rows, column)
    return on_all_rows(layer, op(x.value, w, b), x, product, product)


# With so few samples and directions, and matrices of this size, much of the time of a product is
# that of reading the matrix.
_SAMPLES, _DIRECTIONS, _ELEMENTS = 32, 8, 1 << 14


def _is_dominated_by(matrix: Tensor, value: Tensor, rows: Tensor) -> bool:
    """Whether the time of a product with a matrix is that of reading the matrix, which one product
    instead of three does once."""
    if rows.shape[0] > _DIRECTIONS or matrix.numel() < _ELEMENTS:
        return False
    inside = value  # with all samples
    while is_wrapped(inside):
        inside = functorch.get_unwrapped(inside)
    count = inside.numel()
    return isinstance(count, int) and 0 < count <= _SAMPLES * value.shape[-1]


def _at_once(
    product: Callable[[Tensor], Tensor], value: Tensor, rows: Tensor, laplacian: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The products of a value, its rows and its Laplacian."""
    every = product(torch.cat([value.unsqueeze(0), rows, laplacian.unsqueeze(0)]))
    first, middle, last = torch.split(every, [1, rows.shape[0], 1])
    return first.squeeze(0), middle, last.squeeze(0)


def of_matrix(
    layer: ForwardLaplacian, op: Any, args: Sequence[Any], place: int, value: Any = None
) -> Any:
    """mm, mv or dot with one factor that depends on the input."""
    x: LayerTensor = args[place]
    factor: Tensor = args[1 - place].value
    if factor.layout != torch.strided:  # torch multiplies it by matrices only
        return multilinear(layer, op, args, {}, (place,), value)
    if op is aten.mm.default and place == 1:
        value = factor @ x.value if value is None else value
        return on_all_rows(layer, value, x, factor.matmul, factor.matmul)
    if place == 1 and factor.dim() == 2:
        factor = factor.mT

    def product(rows: Tensor) -> Tensor:
        return rows @ factor

    parts, laplacian = x.parts, x.parts.laplacian
    is_open = value is None and laplacian is not None and parts.are_dense
    if is_open and factor.dim() == 2 and _is_dominated_by(factor, x.value, parts.rows):
        return layer.result(*_at_once(product, x.value, parts.rows, laplacian))
    if value is None:
        value = op(args[0].value, args[1].value)
    return on_all_rows(layer, value, x, product, product)


def add(layer: ForwardLaplacian, op: Any, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return _sum(layer, op, (x, 1), (y, alpha), {"alpha": alpha})


def sub(layer: ForwardLaplacian, op: Any, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return _sum(layer, op, (x, 1), (y, -alpha), {"alpha": alpha})


def rsub(layer: ForwardLaplacian, op: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sum(layer, op, (x, -alpha), (y, 1), {"alpha": alpha})


def _sum(
    layer: ForwardLaplacian, op: Any, left: Any, right: Any, options: dict[str, Any]
) -> LayerTensor:
    """The sum of two terms, each a tensor or number with its factor."""
    (x, by_x), (y, by_y) = left, right
    is_plain = options["alpha"] == 1
    value = op(_value(x), _value(y), **({} if is_plain else options))
    rows: Rows | None = None
    laplacian: Tensor | None = None
    for z, factor in ((x, by_x), (y, by_y)):
        if not is_followed(z):
            continue
        term = scaled(broadcast(z.parts.rows, z.value, value.shape), factor)
        rows = term if rows is None else added(rows, term, value)
        if z.parts.laplacian is not None:
            laplacian = plus(
                laplacian, z.parts.laplacian * factor if factor != 1 else z.parts.laplacian
            )
    if laplacian is not None and laplacian.shape != value.shape:
        laplacian = laplacian.expand(value.shape)
    assert rows is not None
    return layer.result(value, rows, laplacian)


def expand(layer: ForwardLaplacian, op: Any, x: LayerTensor, size: Any, **kwargs: Any) -> Any:
    value = op(x.value, size, **kwargs)
    rows, laplacian = x.parts.rows, x.parts.laplacian
    pushed = None if laplacian is None else laplacian.expand(value.shape)
    return layer.result(value, broadcast(rows, x.value, value.shape), pushed)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, LayerTensor) else x


def _plain(arg: Any) -> Any:
    """An argument of an operator, with the values of its tensors."""
    if isinstance(arg, list):
        return [_plain(element) for element in arg]
    return _value(arg)
