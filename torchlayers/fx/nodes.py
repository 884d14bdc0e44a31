"""Queries and rewrites on the nodes of a captured graph: fake values, layouts, replacement.

A value's layout is not part of the program's meaning, but operators see it in the fake values, and
a view may depend on it. When a node is replaced by one with another layout, the fake values of its
users are recomputed at once (_refresh).
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from torchlayers.core import operator_schema
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
)
from torchlayers.fx.callbacks import io_callback
from torchlayers.fx.debug_ops import DEBUG_OPS
from torchlayers.fx.recomputation import mark_like

# Operators that read memory by explicit strides, or refuse some strides, even of a dimension of one
# element: their inputs must keep their layouts.
BY_STRIDES = {
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
    aten.view.dtype,
    aten.view_as_complex.default,
}
# Operators whose results have the first argument's strides, even if these leave gaps.
_KEEPS_FIRST_STRIDES = {
    aten.copy.default,
    aten.diagonal_scatter.default,
    aten.select_scatter.default,
    aten.slice_scatter.default,
}
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_STALE, _PINNED = "stale", "pinned"


def value(node: Any) -> Any:
    """The node's value: a fake tensor or several."""
    return node.meta.get("val")


def is_tensor(node: Any) -> TypeGuard[Node]:
    return isinstance(node, Node) and isinstance(value(node), Tensor)


def calls(node: Any, *targets: Any) -> TypeGuard[Node]:
    """Whether the node calls one of the operators."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def statically_true(condition: Any) -> bool:
    """Whether the condition holds for all values of its symbols.

    Evaluating a symbolic condition directly would add a guard, and the captured graph would no
    longer be valid for all sizes.
    """
    if isinstance(condition, torch.SymBool):
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(condition)
    return bool(condition)


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        statically_true(size == of_other) for size, of_other in zip(one, other, strict=True)
    )


def has_strides(tensor: Tensor) -> bool:
    """Whether the tensor has strides: sparse, nested and MKL-DNN tensors have none."""
    return tensor.layout is torch.strided and not tensor.is_nested


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether the tensors have equal sizes and, where these matter, equal strides."""
    if not (has_strides(one) and has_strides(other)):
        return one.layout == other.layout and same_sizes(one.shape, other.shape)
    return same_sizes(one.shape, other.shape) and (
        statically_true(one.numel() == 0)
        or all(
            statically_true(size == 1) or statically_true(stride == of_other)
            for size, stride, of_other in zip(one.shape, one.stride(), other.stride(), strict=True)
        )
    )


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor occupies its memory without gaps or overlaps."""
    if not has_strides(tensor):
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def span(tensor: Tensor) -> Any:
    """Returns the number of elements of memory from the tensor's first to its last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def may_overlap(tensor: Tensor) -> bool:
    """Whether two elements may share memory, as in an expanded dimension."""
    if not has_strides(tensor) or statically_true(tensor.numel() <= 1):
        return False
    extent: Any = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if statically_true(size == 1):
            continue
        if not statically_true(stride > extent):
            return True
        extent = extent + (size - 1) * stride
    return False


def same_kind(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def is_conj_or_neg(tensor: Tensor) -> tuple[bool, bool]:
    """Whether the tensor is a lazy conjugate, and whether it is a lazy negative, of its memory.

    Some operators read the memory itself: view_as_real rejects lazily conjugated tensors.
    """
    return tensor.is_conj(), tensor.is_neg()


def is_random(node: Node) -> bool:
    """Whether the node draws random numbers: results differ, and each draw affects later ones."""
    if not isinstance(node.target, OpOverload):
        return any(map(is_random, _inside(node)))
    return operator_schema.is_random(node.target)


def is_collective(node: Node) -> bool:
    """Whether the node is a collective: all ranks must call it equally often, in the same order."""
    if not isinstance(node.target, OpOverload):
        return any(map(is_collective, _inside(node)))
    if node.target.namespace == "torchlayers":  # keyed random operators involve no other rank
        return any(
            argument.name in ("axis", "mesh") for argument in schema_of(node.target).arguments
        )
    return node.target.namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d")


# Operators without which, or with which called twice, the outside would see something else.
EFFECT_OPS = DEBUG_OPS | {io_callback}


def is_effect(node: Node) -> bool:
    """Whether the node prints, stops in the debugger (torchlayers.debug), or is an io_callback."""
    if not isinstance(node.target, OpOverload):
        return any(map(is_effect, _inside(node)))
    return node.target in EFFECT_OPS


def _inside(node: Node) -> Iterator[Node]:
    """The operator calls in the node's subgraphs, such as branches."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr" and node.graph.owning_module is not None:
            subgraph = operator.attrgetter(str(operand.target))(node.graph.owning_module)
            if isinstance(subgraph, GraphModule):
                yield from (inner for inner in subgraph.graph.nodes if inner.op == "call_function")


def has_effect(node: Node) -> bool:
    """Whether the node has to run exactly as often as captured, even if its result is not read."""
    if node.op != "call_function":
        return node.op != "get_attr"
    return is_random(node) or is_collective(node) or node.is_impure() or is_effect(node)


def emit(before: Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Inserts a node before another and computes its value; after an error, none is left behind."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target)
    node.args, node.kwargs = args, kwargs  # call_function would warn about symbolic sizes
    mark_like(node, before)
    try:
        node.meta["val"] = _computed(node)
    except Exception:
        before.graph.erase_node(node)
        raise
    return node


def replace(old: Node, new: Any) -> bool:
    """Replaces all uses of one node by another that computes the same.

    Returns:
        Whether this was possible; it is not if the old node's memory is read by strides.
    """
    if is_pinned(old):
        return False
    before, after = value(old), value(new)
    if before.shape != after.shape or not same_kind(before, after):
        raise AssertionError(f"{new.format_node()} can't replace {old.format_node()}")
    if is_conj_or_neg(before) != is_conj_or_neg(after):
        if any(is_conj_or_neg(after)):
            new = emit(old, aten.clone.default, new)  # materializes the conjugate or negative
            after = value(new)
        _invalidate(old)
        old.replace_all_uses_with(new)
        _refresh(old.graph)
    elif same_layout(before, after):
        old.replace_all_uses_with(new)
    else:
        _invalidate(old)
        old.replace_all_uses_with(new)
        _refresh(old.graph)
    return True


def update(node: Node, *args: Any, target: Any = None) -> None:
    """Changes a node's arguments or operator without changing what it computes."""
    node.args = args
    node.target = target or node.target
    node.meta[_STALE] = True
    _refresh(node.graph)


def replace_uses(readers: Iterable[Node], old: Node, new: Node) -> None:
    """Makes some users of a node read another that computes the same."""
    for reader in readers:
        reader.replace_input_with(old, new)
    if not same_layout(value(old), value(new)):
        _invalidate(new)
        _refresh(new.graph)


def is_pinned(node: Node) -> bool:
    """Whether the node has to keep its strides, as its memory is read by explicit strides."""
    return bool(node.meta.get(_PINNED))


def _refresh(graph: Graph) -> None:
    """Recomputes the values that a replacement made stale, before a pass reads them."""
    for node in graph.nodes:
        if not node.meta.pop(_STALE, False) or node.op != "call_function":
            continue
        if isinstance(
            node.target, HigherOrderOperator
        ):  # compiler/passes/loops/control_flow_operands.py handles their strides
            continue
        before = value(node)
        node.meta["val"] = after = _computed_with_copies(node)
        if not isinstance(before, Tensor):
            _invalidate(node)
        elif not same_layout(before, after) or is_conj_or_neg(before) != is_conj_or_neg(after):
            _invalidate(node)
            if is_pinned(node):
                _lay_out_after(node, before)


def pin(graph: Graph) -> None:
    """Marks the nodes whose memory is read by explicit strides, which must keep their layouts."""
    for node in graph.nodes:
        if calls(node, *BY_STRIDES):
            _pin_reads(node.args[0])


def _pin_reads(read: Any) -> None:
    while read is not None:
        read.meta[_PINNED] = True
        read = _as_node(read.args[0]) if calls(read, *_KEEPS_FIRST_STRIDES) else view_base(read)


def view_base(node: Node) -> Node | None:
    """The node that this one's result aliases, if it is a view or the result of a write."""
    if calls(node, aten._unsafe_view.default):
        return _as_node(node.args[0])
    if node.op != "call_function":
        return None
    if not isinstance(node.target, OpOverload):
        many = node.args[0] if node.args else None
        is_item = isinstance(many, Node) and getattr(node.target, "__name__", "") == "getitem"
        return view_base(many) if is_item and isinstance(many, Node) else None
    schema = schema_of(node.target)
    if not schema.returns or (alias := schema.returns[0].alias_info) is None:
        return None
    names = alias.before_set
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is not None and info.before_set & names:
            source = node.args[position] if position < len(node.args) else None
            return _as_node(node.kwargs.get(argument.name) if source is None else source)
    return None


def memory_of(node: Node) -> Node:
    """The node that allocated the memory of this node's result."""
    while (viewed := view_base(node)) is not None:
        node = viewed
    return node


def copy_with_strides(before: Node, node: Node, like: Tensor) -> Node:
    """Copies the node's value to another tensor's strides, apart from any gaps in these."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda dim: (-strides[dim], dim))
    back = [order.index(dim) for dim in range(like.dim())]
    permuted = emit(before, aten.permute.default, node, order)
    copied = emit(before, aten.clone.default, permuted, memory_format=torch.contiguous_format)
    return emit(before, aten.permute.default, copied, back)


def mode_of(graph: Graph) -> FakeTensorMode | None:
    """The fake tensor mode of the graph's values."""
    for node in graph.nodes:
        if isinstance(fake := value(node), FakeTensor):
            return fake.fake_mode
    return None


def _as_node(argument: Any) -> Node | None:
    return argument if isinstance(argument, Node) else None


def _invalidate(node: Node) -> None:
    for user in node.users:
        user.meta[_STALE] = True


def _computed(node: Node) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), _value_of_input)
    mode = mode_of(node.graph)
    if mode is None:
        mode = FakeTensorMode()
    with mode:
        if calls(node, *_VIEWS):
            args = (_without_ones(args[0]), *args[1:])
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _without_ones(tensor: Any) -> Any:
    """Drops dimensions of size 1 before a view: across these, fake tensors allow invalid views.

    torch 2.13: sizes (6, 2, 1, 2) with strides (2, 12, 2, 1) can be viewed as (6, 4).
    """
    ones = [dim for dim, size in enumerate(tensor.shape) if statically_true(size == 1)]
    return tensor.squeeze(ones) if ones else tensor


def _value_of_input(node: Node) -> Any:
    """The node's value as an operand: the subgraph or attribute for get_attr, else a fake value."""
    if node.op == "get_attr" and value(node) is None:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return value(node)


def _computed_with_copies(node: Node) -> Any:
    """Computes the node's value; a view that the layout does not allow becomes a view of a copy."""
    try:
        return _computed(node)
    except (RuntimeError, ValueError):
        if not calls(node, *_VIEWS):
            raise
        dense = emit(node, aten.clone.default, node.args[0], memory_format=torch.contiguous_format)
        node.args = (dense, *node.args[1:])
        return _computed(node)


def _lay_out_after(node: Node, like: Tensor) -> None:
    users = list(node.users)
    copy = copy_with_strides(node.next, node, like)
    _pin_reads(copy)
    for user in users:
        user.replace_input_with(node, copy)
