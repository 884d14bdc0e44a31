"""Rules for any operator, by forward mode: nested jvps along all directions at once."""

from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.tensors.storage import without_shared_elements
from torchlayers.transforms import decompositions
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.laplacian.layer import Call, ForwardLaplacian, on_rows
from torchlayers.transforms.laplacian.rows import dense, resolved
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import has_derivatives


def first_order(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """For operators whose second derivative is zero: linear in pieces, or in all arguments."""
    return _by_jvp(layer, Call(layer, op, args, kwargs), is_curved=False)


def second_order(
    layer: ForwardLaplacian,
    op: Any,
    *args: Any,
    constants: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> Any:
    """For all others: the second derivative along each direction, summed.

    ``constants`` are the elements of the only operand, and of the result, that are constants where
    the operator has no derivative: they add nothing, where it would be nan.
    """
    return _by_jvp(layer, Call(layer, op, args, kwargs), True, constants)


def second_order_of_each(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """For elementwise operators, which may lack a derivative at zero, as abs of complex numbers."""
    call = Call(layer, op, args, kwargs)
    if len(call.operands) != 1:
        return _by_jvp(layer, call, is_curved=True)
    zeros = constant_zeros(call.operands[0])
    return _by_jvp(layer, call, is_curved=True, constants=(zeros, zeros))


def constant_zeros(x: LayerTensor) -> Tensor:
    """Where the value, its rows and its Laplacian are zero."""
    changes: Tensor = (x.value != 0) | (dense(x.parts.rows, x.value) != 0).any(0)
    if x.parts.laplacian is not None:
        changes = changes | (x.parts.laplacian != 0)
    return changes.logical_not()


def constant(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """For operators without a derivative."""
    return layer.send_down(op, args, kwargs)


def decomposed(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """For operators that are best decomposed into ones with rules."""
    return NotImplemented


def without_rule(layer: ForwardLaplacian, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators without a rule of their own: by forward mode, or decomposed if that has none."""
    call = Call(layer, op, args, kwargs)
    if not call.operands:
        return layer.send_down(op, args, kwargs)
    name, overload = schema_of(op).name, schema_of(op).overload_name
    is_custom = op.namespace not in ("aten", "prims", "torchlayers")
    if not _C.has_jvp_rule(name, overload) and (
        is_custom or decompositions.find(name, overload) is not None
    ):
        return NotImplemented
    return _by_jvp(layer, call, is_curved=True)


def _by_jvp(
    layer: ForwardLaplacian,
    call: Call,
    is_curved: bool,
    constants: tuple[Tensor, Tensor] | None = None,
) -> Any:
    results = call.value
    if not call.operands:
        return results
    is_single = isinstance(results, Tensor)
    leaves: list[Tensor] = [results] if is_single else list(results)
    places = [i for i, leaf in enumerate(leaves) if has_derivatives(leaf)]
    if not places:
        return results

    def func(*primals: Tensor) -> tuple[Tensor, ...]:
        results = call.on(primals)
        every = [results] if is_single else list(results)
        return tuple(every[i] for i in places)

    primals = tuple(without_shared_elements(each) for each in call.values)
    if constants is not None:  # a derivative that is nan would spoil gradients of the result
        primals = tuple(torch.where(constants[0], 1, primal) for primal in primals)
    rows = call.rows()
    count = len(rows)

    def along(*tangents: Tensor) -> tuple[Tensor, ...]:
        pushed: tuple[Tensor, ...] = jvp(func, primals, tangents)[1]
        return pushed

    def twice_along(*tangents: Tensor) -> Any:
        def once(*primals: Tensor) -> Any:
            return jvp(func, primals, tangents[:count])[1]

        return jvp(once, primals, tangents[count:])

    curvature: list[Tensor | None] = [None] * len(places)
    if is_curved:
        pushed, bent = on_rows(twice_along, *rows, *(layer.weighted(each) for each in rows))
        curvature = [each.sum(0) for each in bent]
    else:
        pushed = on_rows(along, *rows)
    laplacians = call.laplacians()
    first_order = jvp(func, primals, tuple(laplacians))[1] if laplacians is not None else None
    for i, place in enumerate(places):
        total = curvature[i]
        if first_order is not None:
            total = first_order[i] if total is None else first_order[i] + total
        total = None if total is None else resolved(total)
        of_first = resolved(pushed[i])
        if constants is not None:
            of_first = torch.where(constants[1], 0, of_first)
            total = None if total is None else torch.where(constants[1], 0, total)
        leaves[place] = layer.result(leaves[place], of_first, total)
    return leaves[0] if is_single else tuple(leaves)
