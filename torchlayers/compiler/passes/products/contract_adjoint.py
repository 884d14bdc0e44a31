"""Rewrites sums of (A B) ∘ F as sums of A ∘ (F Bᵀ) if F Bᵀ is computed already.

Forward over reverse, contracted with the direction: vᵀ H v, a Laplacian. The tangent of a layer is
ẑ = F Bᵀ, and the backward pass ends in sums of (A B) ∘ F, which become those of A ∘ ẑ. Applied
layer by layer, this removes every product of the tangents' backward pass: as many remain as the
forward Laplacian has (Li et al. 2023, arXiv:2307.08214).
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import RESHAPES, is_transpose, rows_of, with_rows
from torchlayers.compiler.passes.products.linearity import PRODUCTS, is_scaling
from torchlayers.core.operators import aten
from torchlayers.fx.cse import key_of
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_tensor,
    replace,
    same_sizes,
    value,
)
from torchlayers.fx.recomputation import RECOMPUTATION_ID

# Operators that add, and whether the second argument is subtracted.
SUMS = {aten.add.Tensor: False, aten.sub.Tensor: True, aten.addcmul.default: False}
CONTRACTIONS = {
    aten.mv.default, aten.dot.default, aten.sum.default, aten.sum.dim_IntList,
}  # fmt: skip


class Contraction(NamedTuple):
    """Sums of a node's elements over ``dims``, each times the weight's element (None: one)."""

    summed: Node
    weight: Node | None
    dims: list[int]


class Weight(NamedTuple):
    """The multiplier of each summed element: a number times the node's element (None: ones)."""

    node: Node | None
    times: float


class AdjointMatch(NamedTuple):
    """The nodes from the summed one to the product, and the weight's product with the transpose."""

    path: list[Node]
    adjoint: Weight


def contract_adjoint(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    waiting = list(graph.graph.nodes)
    while waiting:
        node = waiting.pop()
        for contraction in _contractions(node) if node.users else ():
            if (match := next(_search(contraction, node), None)) is not None:
                waiting += _contract(node, contraction, match)
                break


def _contractions(node: Node) -> Iterator[Contraction]:
    """Yields the node's sums; none in half precision, where one of the factors may overflow."""
    if node.target not in CONTRACTIONS:
        return
    arguments: Any = node.args
    first, *rest = arguments
    dims, dtype = value(first).dim(), value(first).dtype
    if not dtype.is_floating_point or dtype.itemsize < 4:
        return
    if node.kwargs.get("dtype") not in (None, dtype):
        return
    if calls(node, aten.mv.default, aten.dot.default):
        yield Contraction(first, rest[0], [dims - 1])
    if calls(node, aten.dot.default):
        yield Contraction(rest[0], first, [0])
    if calls(node, aten.sum.default) and not rest and dims:
        yield Contraction(first, None, [*range(dims)])
    if calls(node, aten.sum.dim_IntList) and len(rest) == 1 and rest[0] and dims:
        over = [dim % dims for dim in rest[0]]
        if dims - 1 in over:
            yield Contraction(first, None, over)


def _search(contraction: Contraction, node: Node) -> Iterator[AdjointMatch]:
    """Yields products that contribute to the sum and have no other reader."""
    summed, weight, _ = contraction
    weights = [Weight(None, 1.0)] if weight is None else [*_expanded(weight, value(summed))]
    waiting: list[tuple[Any, list[Node], list[Weight]]] = [(summed, [], weights)]
    while waiting:
        step, above, weights = waiting.pop()
        if not _is_only_read_once(step, value(summed)):
            continue
        path = [*above, step]
        if (product := _product(step)) is not None:
            ending = path if product is step else [*path, product]
            yield from (
                AdjointMatch(ending, adjoint)
                for adjoint in _adjoints(product, weights)
                if adjoint.node is not None
                and adjoint.node < node
                and (product is step or _has_rows_of(adjoint.node, product))
            )
        for factor in _linear_in(step):
            waiting.append((factor, path, _weighted(weights, step, factor)))


def _product(node: Node) -> Node | None:
    """Returns the node, or the product that the node views as batches of rows."""
    if node.target in PRODUCTS:
        return node
    matrix = rows_of(node)
    is_product = calls(matrix, aten.mm.default) and len(matrix.users) == 1
    return matrix if is_product else None


def _has_rows_of(adjoint: Node, product: Node) -> bool:
    """Whether both have the same rows: a weight that all batches of rows share has fewer."""
    return same_sizes(value(adjoint).shape[:-1], value(product).shape[:-1])


def _linear_in(node: Node) -> list[Any]:
    """Returns the arguments that the node is linear in while the other arguments are constant."""
    factors: list[Any] = []
    like = value(node)
    if node.target in SUMS and _has_defaults(node):
        terms = [*node.args] if len(node.args) == 2 else [node.args[0]]
        if all(is_tensor(term) and same_sizes(value(term).shape, like.shape) for term in terms):
            factors = terms
    elif is_scaling(node.target):
        factors = [*node.args[: 2 if calls(node, aten.mul.Tensor) else 1]]
    return [factor for factor in factors if node.args.count(factor) == 1]


def _has_defaults(node: Node) -> bool:
    return all(kwarg is None for kwarg in node.kwargs.values())


def _is_only_read_once(node: Any, like: Any) -> bool:
    """Whether a node with one reader has the sizes and dtype of the summed node."""
    return (
        is_tensor(node)
        and node.op == "call_function"
        and len(node.users) == 1
        and same_sizes(value(node).shape, like.shape)
        and value(node).dtype == like.dtype
    )


def _expanded(weight: Any, like: Any) -> Iterator[Weight]:
    """Yields the weight, and views of it that broadcast to the same values."""
    yield Weight(weight, 1.0)
    for user in weight.users:
        if (user.target in RESHAPES or calls(user, aten.expand.default)) and is_tensor(user):
            sizes, seen = [*value(user).shape], [*value(weight).shape]
            while len(sizes) > len(seen) and sizes[0] == 1:
                del sizes[0]
            if same_sizes(sizes, seen) or same_sizes(sizes, like.shape):
                yield from _expanded(user, like)


def _weighted(weights: list[Weight], step: Node, factor: Any) -> list[Weight]:
    """Returns the factor's weights: existing nodes that apply the step to a weight."""
    if step.target in SUMS:
        is_subtracted = SUMS[step.target] and factor is step.args[1]
        return _scaled(weights, -1.0 if is_subtracted else 1.0)
    number = _number(step)
    result = [] if number is None else _scaled(weights, number)
    place = step.args.index(factor)
    for weight in weights:
        if weight.node is not None:
            wanted = _keys(step, weight.node, place)
            result += [
                weight._replace(node=user)
                for user in weight.node.users
                if user.target is step.target and key_of(user, user.args, user.kwargs) in wanted
            ]
        elif calls(step, aten.mul.Tensor) and number is None:
            result += _scaled(_expanded(step.args[1 - place], value(step)), weight.times)
    return result


def _scaled(weights: Iterable[Weight], number: float) -> list[Weight]:
    return [weight._replace(times=weight.times * number) for weight in weights]


def _number(step: Node) -> float | None:
    """Returns the number that the step multiplies by, or None."""
    if calls(step, aten.neg.default):
        return -1.0
    number = step.args[1] if len(step.args) == 2 else None
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return None
    if calls(step, aten.mul.Scalar, aten.mul.Tensor):
        return float(number)
    if calls(step, aten.div.Scalar, aten.div.Tensor) and number:
        return 1.0 / number
    return None


def _keys(step: Node, weight: Node, place: int) -> list[Any]:
    args = [*step.args]
    args[place] = weight
    orders = [args, args[::-1]] if calls(step, aten.mul.Tensor) else [args]
    return [key_of(step, tuple(order), step.kwargs) for order in orders]


def _adjoints(product: Node, weights: list[Weight]) -> Iterator[Weight]:
    """Yields existing products of the weights with the transpose of the right factor."""
    is_vector = calls(product, aten.mv.default)
    matrix: Any = product.args[0 if is_vector else 1]
    number = product.meta.get(RECOMPUTATION_ID)
    for weight in weights:
        for factor in () if weight.node is None else _rows(weight.node, value(product)):
            for user in factor.users:
                if user.target is not product.target or user.meta.get(RECOMPUTATION_ID) != number:
                    continue
                factors = user.args[::-1] if is_vector else user.args
                if factors[0] is factor and _are_transposes(factors[1], matrix):
                    yield weight._replace(node=user)


def _rows(weight: Node, product: Any) -> Iterator[Node]:
    """Yields the weight, its copies, and views of it with the product's rows."""
    yield weight
    for user in weight.users:
        is_of_rows = user.target in RESHAPES and same_sizes(value(user).shape, product.shape)
        if is_of_rows or calls(user, aten.clone.default):
            yield from _rows(user, product)


def _left(product: Node) -> Node:
    return product.args[1 if calls(product, aten.mv.default) else 0]  # type: ignore[return-value]


def _are_transposes(one: Any, other: Any) -> bool:
    pairs = (one, other), (other, one)
    return any(is_transpose(transpose) and transpose.args[0] is of for transpose, of in pairs)


def _contract(node: Node, contraction: Contraction, match: AdjointMatch) -> list[Node]:
    """Replaces the sum. Returns the sums that it is computed from."""
    _, weight, dims = contraction
    times = match.adjoint.times
    factors: list[Any] = [_left(match.path[-1]), match.adjoint.node]
    rows = value(match.path[-2]) if len(match.path) > 1 else None
    if rows is not None and rows.dim() > value(factors[0]).dim():
        factors = [with_rows(node, other, rows.shape[:-1]) for other in factors]
    product = emit(node, aten.mul.Tensor, *factors)
    contracted = emit(node, aten.sum.dim_IntList, product, dims)
    new = [contracted]
    if times != 1:
        contracted = emit(node, aten.mul.Tensor, contracted, times)
    rest = _without_last(node, match.path)
    if rest is not None:
        rest_of_args = node.args[1:] if weight is None else (weight,)
        new.append(emit(node, node.target, rest, *rest_of_args))  # type: ignore[arg-type]
        contracted = emit(node, aten.add.Tensor, new[-1], contracted)
    if replace(node, contracted):
        for other in (node, *match.path, *match.path[-1].all_input_nodes):
            if not other.users and other.op == "call_function":
                node.graph.erase_node(other)
    return new


def _without_last(before: Node, path: list[Node]) -> Any:
    """Returns the start of the path with zeros for the product at its end; None if all is zero."""
    rest: Any = None
    for above, below in reversed([*itertools.pairwise(path)]):
        if rest is not None:
            args = [rest if arg is below else arg for arg in above.args]
            rest = emit(before, above.target, *args, **above.kwargs)  # type: ignore[arg-type]
        elif calls(above, aten.addcmul.default):
            rest = emit(before, aten.mul.Tensor, *above.args[1:])
            if not same_sizes(value(rest).shape, value(above).shape):  # sum all broadcast elements
                rest = emit(before, aten.expand.default, rest, [*value(above).shape])
        elif above.target in SUMS:
            (rest,) = (arg for arg in above.args if arg is not below)
            if SUMS[above.target] and above.args[0] is below:
                rest = emit(before, aten.neg.default, rest)
    return rest
