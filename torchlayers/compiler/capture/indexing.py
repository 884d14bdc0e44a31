"""Captures subscripts ``x[i]`` where i is a tensor of which torch would read the number.

``x[i]`` is captured as a gather, so it is a copy; in torch it is a view. Where the difference would
be visible, capture raises an error.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental import proxy_tensor

from torchlayers.compiler.capture.errors import IndexedWriteError
from torchlayers.compiler.capture.reads import TensorReads
from torchlayers.core.errors import DataDependentError, location
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import is_tensor, is_write, memory_of, written_by
from torchlayers.fx.symbolic_index import (
    SymbolicIndex,
    is_advanced,
    symbolic_getitem,
    symbolic_setitem,
)

_GATHERING = (aten.index_select.default, aten.index.Tensor, aten.gather.default)


class _RecordedIndex(NamedTuple):
    """The nodes captured for one subscript: those after ``before``, up to ``last``."""

    before: Node
    last: Node
    line: str


class TensorIndexing:
    """The subscripts of one capture.

    Attributes:
        rules: the replacements for torch functions, by function.
    """

    def __init__(self, func: Callable[..., Any], reads: TensorReads | None) -> None:
        self._func = func
        self._reads = reads
        self._picks: list[_RecordedIndex] = []
        self.rules: dict[Any, Callable[..., Any]] = {
            Tensor.__getitem__: self._get,
            Tensor.__setitem__: self._set,
            **{each: self._selecting(each) for each in (torch.select, Tensor.select)},
            **{each: _narrowing(each) for each in (torch.narrow, Tensor.narrow)},
        }

    def _get(self, x: Any, subscript: Any) -> Any:
        several = _counted(subscript)
        try:
            # make_fx's mode bypasses NOTE [Subscripts].
            with torch.DisableTorchFunction(), self._without_reads(several):
                return operator.getitem(x, subscript)
        except DataDependentError:
            if several is None:
                raise
        nodes = _nodes()
        before = nodes.prev
        found = symbolic_getitem(x, several)
        if not any(map(is_advanced, several)):  # with those, torch's result is a copy as well
            self._picks.append(_RecordedIndex(before, nodes.prev, location()))
        return found

    def _set(self, x: Any, subscript: Any, value: Any) -> None:
        several = _counted(subscript)
        try:
            with torch.DisableTorchFunction(), self._without_reads(several):
                operator.setitem(x, subscript, value)
        except DataDependentError:
            if several is None:
                raise
            symbolic_setitem(x, several, value)

    def _without_reads(self, several: Any) -> contextlib.AbstractContextManager[None]:
        """Refuses reads where the number in a tensor can be used without being read."""
        if several is None or self._reads is None:
            return contextlib.nullcontext()
        return self._reads.refused()

    def _selecting(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def select(input: Any, dim: Any, index: Any) -> Any:
            if not _is_number(index) or not isinstance(dim, int):
                return func(input, dim, index)
            return self._get(input, (*[slice(None)] * (dim % input.dim()), index))

        return select

    def refuse_what_differs(self) -> None:
        """Raises if some x[i] is written to, or is read after x was written to."""
        live: dict[Graph, set[Node]] = {}
        for pick in self._picks:
            nodes = _between(pick.before, pick.last)
            own = {node for node in nodes if node.target in _GATHERING}
            sources = {memory_of(node.all_input_nodes[0]) for node in own} - own
            graph = pick.last.graph
            if graph not in live:
                live[graph] = _live(graph)
            is_changed = False
            for node in _between(pick.last, graph._root):
                if node not in live[graph]:
                    continue
                read = {memory_of(each) for each in node.all_input_nodes if is_tensor(each)}
                if is_changed and read & own:
                    raise IndexedWriteError(self._func, pick.line)
                if is_write(node):
                    written = {memory_of(each) for each in written_by(node)}
                    if written & own:
                        raise IndexedWriteError(self._func, pick.line)
                    is_changed = is_changed or bool(written & sources)


def _narrowing(func: Callable[..., Any]) -> Callable[..., Any]:
    def narrow(input: Any, dim: Any, start: Any, length: Any) -> Any:
        if not _is_number(start) or not isinstance(dim, int):
            return func(input, dim, start, length)
        first = torch.where(start < 0, start + input.shape[dim], start)
        return input.index_select(dim, first + torch.arange(length, device=input.device))

    return narrow


def _counted(subscript: Any) -> tuple[Any, ...] | None:
    """Returns the subscript with tensors that are numbers as Counters; None if there are none."""
    several = subscript if isinstance(subscript, tuple) else (subscript,)
    if not any(map(_is_number, several)):
        return None
    return tuple(SymbolicIndex(each) if _is_number(each) else each for each in several)


def _is_number(each: Any) -> bool:
    return (
        isinstance(each, Tensor)
        and each.dim() == 0
        and each.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    )


def _nodes() -> Node:
    """Returns the graph's root, which is before its first node and after its last."""
    mode: Any = proxy_tensor.get_proxy_mode()
    root: Node = mode.tracer.graph._root
    return root


def _live(graph: Graph) -> set[Node]:
    """Returns the nodes that a result or a write depends on."""
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in live or node.op == "output" or is_write(node):
            live |= {node, *node.all_input_nodes}
    return live


def _between(before: Node, end: Node) -> Iterator[Node]:
    """Yields the nodes after one, up to and including the other."""
    node = before.next
    while node.op != "root":
        yield node
        if node is end:
            return
        node = node.next
