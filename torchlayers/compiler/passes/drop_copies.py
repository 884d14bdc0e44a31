"""Replaces copies that are not written to, and views that change nothing, with their source."""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_conj_or_neg,
    is_tensor,
    replace,
    same_kind,
    same_layout,
    same_sizes,
    value,
)

# If sizes and strides are the same, the result has the first argument's elements, in their order
# along each dimension. (An operator with an offset, such as slice, takes all or changes a size;
# padding that is negative at one end shifts elements.)
SAME_ELEMENTS = {
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.clone.default,
    aten._to_copy.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.slice.Tensor,
    aten.constant_pad_nd.default,
    aten.copy.default,
}


def drop_copies(graph: GraphModule) -> None:
    """Removes copies, which are redundant as a graph without mutations writes nothing."""
    for node in graph.graph.nodes:
        if node.target is aten.copy.default:
            _written_over(node)
        elif calls(node, aten.constant_pad_nd.default) and any(node.args[1]):  # type: ignore[arg-type]
            continue
        elif node.target in SAME_ELEMENTS and is_tensor(node.args[0]):
            result, source = value(node), value(node.args[0])
            is_same = same_layout(result, source) and same_kind(result, source)
            if is_same and is_conj_or_neg(result) == is_conj_or_neg(source):
                replace(node, node.args[0])
        elif getattr(node.target, "__name__", "") == "getitem":
            _only_part(node)


def _written_over(node: Node) -> None:
    """Replaces copy(x, y) with y, cast and expanded to x's dtype and sizes."""
    source: Any = node.args[1]
    result = value(node)
    if not is_tensor(source):
        return
    if value(source).dtype != result.dtype:
        if value(source).is_complex() and not result.is_complex():
            return  # keeps torch's warning that the imaginary part is discarded
        source = emit(node, aten._to_copy.default, source, dtype=result.dtype)
    if value(source).device != result.device:
        return
    if not same_sizes(value(source).shape, result.shape):
        source = emit(node, aten.expand.default, source, list(result.shape))
    replace(node, source)


def _only_part(node: Node) -> None:
    """Replaces the only part of a split with the tensor that is split."""
    many: Any = node.args[0]
    splits = {aten.split_with_sizes.default, aten.split.Tensor}
    if many.target in splits and len(value(many)) == 1:
        replace(node, many.args[0])
