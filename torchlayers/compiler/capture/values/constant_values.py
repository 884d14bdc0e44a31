"""Constant-folds data-dependent queries during capture when their inputs are shapes or literals.

A mask or a window that the function makes from shapes and numbers alone is a constant, though each
operator that made it is captured. Code that branches on such a constant (combinations, a causal
mask's check) needs its value, which is then computed from the nodes captured so far.
"""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.fx.node import map_arg

from torchlayers.core import operator_schema, pytree
from torchlayers.core.operators import aten
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import FakeTensor, OpOverload, dispatch_modes
from torchlayers.fx.writes import is_write, written_by

_VARIES = "varies"  # a key in node.meta
_MANY = 1_000_000  # the most elements that are computed


def fold_if_constant(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Returns the result of a data-dependent operator, or NotImplemented.

    If its arguments are constants, the result is computed; if only its mask is a constant, the
    operator is captured as indexing by the positions where the mask is true.
    """
    if func is aten.masked_select.default:
        x, mask = args
        if (constant := _values([mask])) is None:
            return NotImplemented
        shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
        with dispatch_modes._disable_current_modes():
            places = constant[0].expand(shape).reshape(-1).nonzero().reshape(-1)
        return aten.index_select.default(x.expand(shape).reshape(-1), 0, _constant(places))
    if func is aten.index.Tensor:
        return _indexed(*args)
    leaves, spec = pytree.flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    values = _values(tensors)
    if values is None:
        return NotImplemented
    by_tensor = {id(x): value for x, value in zip(tensors, values, strict=True)}
    args, kwargs = pytree.unflatten([by_tensor.get(id(leaf), leaf) for leaf in leaves], spec)
    with dispatch_modes._disable_current_modes():
        result = func(*args, **kwargs)
    return pytree.map_tensors(_constant, result)


def is_constant(tensor: FakeTensor) -> bool:
    """Whether its value is known, and the same at every call."""
    if tensor.constant is not None:
        return True
    return proxy_tensor.get_proxy_mode() is not None and _values([tensor]) is not None


def _indexed(x: Tensor, indices: list[Tensor | None]) -> Any:
    """Returns x[indices] if the masks among the indices are constants, or NotImplemented."""
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    values = _values(masks)
    if values is None:
        return NotImplemented
    known = iter(values)
    all_indices: list[Tensor | None] = []
    for index in indices:
        if any(index is mask for mask in masks):
            with dispatch_modes._disable_current_modes():
                places = next(known).nonzero().unbind(1)
            all_indices += map(_constant, places)
        else:
            all_indices.append(index)
    return aten.index.Tensor(x, all_indices)


def _constant(value: Tensor) -> Tensor:
    return aten.lift_fresh.default(value.contiguous())  # type: ignore[no-any-return]


def _values(tensors: list[Tensor]) -> list[Tensor] | None:
    """Returns the values that traced tensors have at every call, or None if calls may differ."""
    mode: Any = proxy_tensor.get_proxy_mode()
    nodes = []
    for x in tensors:
        slot = proxy_tensor.get_proxy_slot(x, mode.tracer, None)
        if not isinstance(x, FakeTensor) or slot is None:
            return None
        nodes.append(slot.proxy.node)
    needed = _computation_of(nodes, {storage_of(x) for x in tensors})
    if needed is None:
        return None
    values: dict[Node, Any] = {}
    with dispatch_modes._disable_current_modes(), torch.no_grad():
        for node in needed:
            if node.op == "get_attr":
                values[node] = getattr(mode.tracer.root, str(node.target)).clone()
            else:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                target: Any = node.target
                values[node] = target(*args, **kwargs)
        return [values[node].clone() for node in nodes]


def _computation_of(nodes: list[Node], memories: set[int | None]) -> list[Node] | None:
    """Returns, in order, all nodes that compute these or write to their memory; None if any varies.

    A node varies if it depends on a call's inputs or on random numbers.
    """
    if not nodes:
        return []
    if any(map(_follows_from_varying, nodes)):
        return None
    wanted, computation, numbers = {*nodes}, list[Node](), 0
    for node in reversed(nodes[0].graph.nodes):
        if node not in wanted and not (
            is_write(node) and any(storage_of(x) in memories for x in _tensors(written_by(node)))
        ):
            continue
        numbers += sum(x.numel() for x in _tensors([node]))
        if not _is_constant(node) or numbers > _MANY:
            return None
        wanted.update(node.all_input_nodes)
        memories = memories | {storage_of(x) for x in _tensors(node.all_input_nodes)}
        computation.append(node)
    return computation[::-1]


def _follows_from_varying(node: Node) -> bool:
    """Whether a node varies for what it is computed from; each node is asked once."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        unknown = [n for n in last.all_input_nodes if _VARIES not in n.meta]
        if unknown and _is_constant(last):
            waiting += unknown
            continue
        inputs = last.all_input_nodes
        last.meta[_VARIES] = not _is_constant(last) or any(n.meta[_VARIES] for n in inputs)
        waiting.pop()
    return bool(node.meta[_VARIES])


def _is_constant(node: Node) -> bool:
    if node.op != "call_function":
        return node.op == "get_attr"
    target: Any = node.target
    if isinstance(target, OpOverload):
        return not operator_schema.is_random(target)
    return target is operator.getitem


def _tensors(nodes: list[Node]) -> Iterator[Tensor]:
    for node in nodes:
        for leaf in pytree.leaves(node.meta.get("val")):
            if isinstance(leaf, Tensor):
                yield leaf
