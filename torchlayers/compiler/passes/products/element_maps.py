"""Index maps: which element of a node each element of an expression reads.

An expression is evaluated at the positions of a space that has the result's sizes. Through views
and broadcasting, a node's index along each of its dimensions is affine in the position: an offset
plus a number of steps per position.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.fx import Node

from torchlayers.compiler.passes.merge_views import PERMUTES, RESHAPES, order_of
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import is_tensor, same_sizes, statically_true, value

SAME = {aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}


class AffineIndex(NamedTuple):
    """An affine index: its offset, and its steps along each dimension of the space."""

    start: Any
    steps: tuple[Any, ...]

    @property
    def moves(self) -> frozenset[int]:
        """The dimensions of the space that the index varies along."""
        return frozenset(
            dim for dim, step in enumerate(self.steps) if not statically_true(step == 0)
        )


ElementMap = tuple[AffineIndex, ...]


def identity_map(sizes: Sequence[Any]) -> ElementMap:
    """Returns the places of a node with the space's sizes. Dimensions of size 1 are constant."""
    return tuple(
        AffineIndex(
            0, tuple(int(at == dim and not statically_true(size == 1)) for at in range(len(sizes)))
        )
        for dim, size in enumerate(sizes)
    )


def constant_index(space: Sequence[Any]) -> AffineIndex:
    return AffineIndex(0, (0,) * len(space))


def map_broadcast_operand(
    places: ElementMap, like: Sequence[Any], operand: Sequence[Any]
) -> ElementMap:
    """Returns the places of an operand that is broadcast to the sizes ``like``."""
    ahead = len(like) - len(operand)
    return tuple(
        place
        if statically_true(like[ahead + dim] == size)
        else AffineIndex(0, (0,) * len(place.steps))
        for dim, (size, place) in enumerate(zip(operand, places[ahead:], strict=True))
    )


def map_view_source(node: Node, places: ElementMap, space: Sequence[Any]) -> ElementMap | None:
    """Returns the places of the tensor that the node views or copies; None if unknown."""
    if not node.args or not is_tensor(source := node.args[0]):
        return None
    sizes, before = value(node).shape, value(source).shape
    if node.target in SAME:
        return places
    if node.target in PERMUTES:
        turned: dict[int, AffineIndex] = dict(zip(order_of(node), places, strict=True))
        return tuple(turned[dim] for dim in range(len(before)))
    if node.target is aten.expand.default:
        return map_broadcast_operand(places, sizes, before)
    if node.target is aten.select.int:
        options: Any = node.args[1:]
        dim, index = options[0] % len(before), options[1]
        if not isinstance(before[dim], int) or not isinstance(index, int):
            return None
        taken = AffineIndex(index % before[dim], (0,) * len(space))
        return (*places[:dim], taken, *places[dim:])
    return map_reshape(places, sizes, before, space) if node.target in RESHAPES else None


def map_reshape(
    places: ElementMap, sizes: Sequence[Any], before: Sequence[Any], space: Sequence[Any]
) -> ElementMap | None:
    """Returns the places of a tensor with the same elements in the same order, in other sizes."""
    moving = [at for at, size in enumerate(sizes) if not statically_true(size == 1)]
    wanted = [at for at, size in enumerate(before) if not statically_true(size == 1)]
    if same_sizes([sizes[at] for at in moving], [before[at] for at in wanted]):
        known = dict(zip(wanted, (places[at] for at in moving), strict=True))
        return tuple(known.get(dim, constant_index(space)) for dim in range(len(before)))
    if not all(isinstance(size, int) for size in (*sizes, *before, *space)) or 0 in before:
        return None
    strides = _strides(sizes)
    start = sum(stride * place.start for stride, place in zip(strides, places, strict=True))
    steps = [
        sum(stride * place.steps[dim] for stride, place in zip(strides, places, strict=True))
        for dim in range(len(space))
    ]
    return _split(start, steps, before, space)


def _split(
    start: int, steps: list[int], sizes: Sequence[int], space: Sequence[int]
) -> ElementMap | None:
    """Splits an offset in memory into indices; None if an index may carry over to the next."""
    strides = _strides(sizes)
    starts = [start // stride % size for stride, size in zip(strides, sizes, strict=True)]
    moves = [[0] * len(space) for _ in sizes]
    for along, step in enumerate(steps):
        fits = (
            dim
            for dim, (stride, size) in enumerate(zip(strides, sizes, strict=True))
            if size > 1 and step % stride == 0 and step >= stride
        )
        if step and (dim := next(fits, None)) is None:
            return None
        if step:
            moves[dim][along] = step // strides[dim]  # type: ignore[index]
    for first, size, of_dim in zip(starts, sizes, moves, strict=True):
        last = first + sum(s * (extent - 1) for s, extent in zip(of_dim, space, strict=True))
        if last >= size:
            return None
    return tuple(
        AffineIndex(first, tuple(moves_of_dim))
        for first, moves_of_dim in zip(starts, moves, strict=True)
    )


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
