"""Captures subscripts ``x[i]`` where i is a tensor of which torch would read the number.

``x[i]`` is captured as a gather, so it is a copy; in torch it is a view. Where the difference would
be visible, capture raises an error.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental import proxy_tensor

from torchlayers.compiler.capture.constant_values import is_constant
from torchlayers.compiler.capture.errors import IndexedWriteError
from torchlayers.core.errors import location
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import (
    FakeTensor,
    functorch,
    is_batched_wrapper,
    is_wrapped,
    torch_private,
)
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

    def __init__(self, func: Callable[..., Any]) -> None:
        self._func = func
        self._picks: list[_RecordedIndex] = []
        self.rules: dict[Any, Callable[..., Any]] = {
            Tensor.__getitem__: self._get,
            Tensor.__setitem__: _set,
            **{each: self._selecting(each) for each in (torch.select, Tensor.select)},
            **{each: _narrowing(each) for each in (torch.narrow, Tensor.narrow)},
        }

    def _get(self, x: Any, subscript: Any) -> Any:
        several = _counted(subscript)
        if several is None:
            with torch.DisableTorchFunction():  # make_fx's mode bypasses NOTE [Subscripts]
                return operator.getitem(x, subscript)
        nodes = _nodes()
        before = nodes and nodes.prev
        found = symbolic_getitem(x, several)
        if nodes and before and not any(map(is_advanced, several)):  # torch too copies with those
            self._picks.append(_RecordedIndex(before, nodes.prev, location()))
        return found

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


def _set(x: Any, subscript: Any, value: Any) -> None:
    several = _counted(subscript)
    if several is None:
        with torch.DisableTorchFunction():
            operator.setitem(x, subscript, value)
    else:
        symbolic_setitem(x, several, value)


def _narrowing(func: Callable[..., Any]) -> Callable[..., Any]:
    def narrow(input: Any, dim: Any, start: Any, length: Any) -> Any:
        if not _is_number(start) or not isinstance(dim, int):
            return func(input, dim, start, length)
        first = torch.where(start < 0, start + input.shape[dim], start)
        return input.index_select(dim, first + torch.arange(length, device=input.device))

    return narrow


def _counted(subscript: Any) -> tuple[Any, ...] | None:
    """Returns the subscript with tensors that are numbers as Counters; None if torch takes it.

    torch must not be asked first: it would leave the question for the number in a loop's body.
    """
    several = subscript if isinstance(subscript, tuple) else (subscript,)
    if all(_is_known_or_batched(each) for each in several if _is_number(each)):
        return None
    return tuple(SymbolicIndex(each) if _is_number(each) else each for each in several)


def _is_known_or_batched(number: Tensor) -> bool:
    """Whether a layer indexes by it, which is NOTE [Subscripts], or its value is a constant."""
    inner = number
    while is_wrapped(inner):
        if is_batched_wrapper(inner):
            return True
        if torch_private._is_functional_tensor(inner):
            torch_private._functionalize_sync(inner)
        inner = functorch.get_unwrapped(inner)
    return isinstance(inner, FakeTensor) and is_constant(inner)


def _is_number(each: Any) -> bool:
    return (
        isinstance(each, Tensor)
        and each.dim() == 0
        and each.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    )


def _nodes() -> Node | None:
    """Returns the graph's root, which is before its first node and after its last.

    None while a loop's body or a branch runs for its shapes only.
    """
    mode: Any = proxy_tensor.get_proxy_mode()
    return mode and mode.tracer.graph._root  # type: ignore[no-any-return]


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
