"""Masks and sums gradients of max pooling before they are unpooled to the size of its input.

A pool that follows a relu has few results: each takes the gradient of one element of its input, and
the relu's mask at that element is the mask at the result. And an unpooled gradient has the same sum
over an image as the gradient. So no operator goes over an image, and the relu's result, which is
several times as large as the pool's, need not be kept.
"""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import PERMUTES, RESHAPES
from torchlayers.compiler.passes.products.element_maps import (
    SAME,
    ElementMap,
    constant_index,
    identity_map,
    map_view_source,
)
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import calls, emit, is_pinned, is_tensor, replace, value

_POOL = aten.max_pool2d_with_indices.default
_GRADIENT = aten.max_pool2d_with_indices_backward.default


def mask_pooled(graph: GraphModule) -> None:
    """Masks exactly; sums the same numbers in another order."""
    for node in list(graph.graph.nodes):
        if calls(node, aten.threshold_backward.default):
            _mask(node)
    for node in list(graph.graph.nodes):
        if calls(node, aten.sum.dim_IntList):
            _sum(node)


def _mask(node: Node) -> None:
    """Replaces the masked unpooled gradient by the unpooled masked one."""
    gradient, _, *rest = node.args
    views, unpooled = _viewed(gradient)
    if not calls(unpooled, _GRADIENT) or any(len(view.users) > 1 for view in (*views, unpooled)):
        return
    if any(map(is_pinned, (node, *views, unpooled))):
        return
    if (pooled := _results_of_pool(node, unpooled)) is None:
        return
    masked = emit(node, aten.threshold_backward.default, unpooled.args[0], pooled, *rest)
    again = emit(node, _GRADIENT, masked, *unpooled.args[1:])
    replace(node, _view_alike(node, views, again))


def _viewed(node: Any) -> tuple[list[Node], Any]:
    """The chain of views and copies that a node ends, from the inside, and what they view."""
    views: list[Node] = []
    while calls(node, *SAME, *RESHAPES, *PERMUTES):
        views.append(node)
        node = node.args[0]
    return views[::-1], node


def _view_alike(before: Node, views: list[Node], source: Node) -> Node:
    for view in views:
        target: Any = view.target
        source = emit(before, target, source, *view.args[1:], **view.kwargs)
    return source


def _places(node: Any, of: Node, places: ElementMap, space: Any) -> ElementMap | None:
    """Which element of ``of`` is at these places of a chain of its views; None if it is no such."""
    while node is not of:
        if not is_tensor(node) or (source_places := map_view_source(node, places, space)) is None:
            return None
        places, node = source_places, node.args[0]
    return places


def _results_of_pool(node: Node, unpooled: Node) -> Node | None:
    """The pool's results, viewed as its indices are where the gradient is unpooled.

    None unless the mask reads, at each element that a gradient is unpooled to, what the pool read.
    """
    gradient, of = node.args[:2]
    indices: Any = unpooled.args[-1]
    views, selected = _viewed(indices)
    pool: Any = (
        selected.args[0] if selected.op == "call_function" and selected.args[1:] == (1,) else None
    )
    sizes = value(node).shape
    first = constant_index(sizes)
    if not is_tensor(of) or value(of).shape != sizes or not calls(pool, _POOL):
        return None
    if value(pool.args[0]).shape[-2:] != value(unpooled).shape[-2:]:
        return None
    places = _places(gradient, unpooled, identity_map(sizes), sizes)
    images = places and _places(indices, selected, (*places[:-2], first, first), sizes)
    if not places or not images or images[-2:] != (first, first):
        return None
    if _places(pool.args[0], of, (*images[:-2], *places[-2:]), sizes) != identity_map(sizes):
        return None
    return _view_alike(node, views, emit(node, selected.target, pool, 0))


def _sum(node: Node) -> None:
    """Replaces a sum over whole images of an unpooled gradient by the sum of the gradient."""
    gradient: Any = node.args[0]
    dims, *rest = node.args[1:]
    views, unpooled = _viewed(gradient)
    if rest not in ([], [False]) or node.kwargs or not calls(unpooled, _GRADIENT):
        return
    fake: Any = value(gradient)
    if not dims or not fake.is_floating_point() or fake.itemsize < 4:
        return
    summed = {dim % fake.dim() for dim in dims}  # type: ignore[union-attr]
    rows, columns = _dims_of_image(gradient, unpooled)
    if not {rows, columns} <= summed:
        return
    total = emit(node, aten.sum.dim_IntList, unpooled.args[0], [-2, -1], True)
    total = emit(node, aten.expand.default, total, value(unpooled).shape)
    total = _view_alike(node, views, total)
    for dim in sorted((rows, columns), reverse=True):
        total = emit(node, aten.select.int, total, dim, 0)
    left = sorted(dim - (dim > rows) - (dim > columns) for dim in summed - {rows, columns})
    replace(node, emit(node, aten.sum.dim_IntList, total, left) if left else total)


def _dims_of_image(gradient: Node, unpooled: Node) -> tuple[int, int]:
    """The dimensions of a view that are an image's rows and columns; -1 where there are none."""
    sizes = value(gradient).shape
    whole = identity_map(sizes)
    places = _places(gradient, unpooled, whole, sizes)
    if places is None or any(place not in whole for place in places[-2:]):
        return -1, -1
    rows, columns = (whole.index(place) for place in places[-2:])
    alone = not any(place.steps[dim] for place in places[:-2] for dim in (rows, columns))
    return (rows, columns) if alone and rows != columns else (-1, -1)
