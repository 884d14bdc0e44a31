"""Captures subscripts ``x[i]`` where i is a tensor of which torch would read the number.

``x[i]`` is captured as a gather, so it is a copy; in torch it is a view. Where the difference would
be visible, capture raises an error.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental import proxy_tensor

from torchlayers import _C
from torchlayers.compiler.capture.errors import IndexedWriteError
from torchlayers.compiler.capture.values.constant_values import is_constant
from torchlayers.core import pytree
from torchlayers.core.errors import location
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import (
    FakeTensor,
    functorch,
    is_batched_wrapper,
    is_wrapped,
    torch_private,
)
from torchlayers.fx.nodes import is_tensor, memory_of
from torchlayers.fx.symbolic_index import (
    SymbolicIndex,
    is_advanced,
    symbolic_getitem,
    symbolic_setitem,
)
from torchlayers.fx.writes import is_write, written_by

_GATHERING = (aten.index_select.default, aten.index.Tensor, aten.gather.default)


class _RecordedIndex:
    """The nodes captured for one subscript: those after ``before``, up to ``last``.

    The graph of a function that is functionalized has no writes, and a layer around it computes
    with parts of the copy that look like others. There ``note`` is called before each torch
    function: it looks whether the tensors have other values than before.
    """

    def __init__(self, before: Node, last: Node, x: Tensor, result: Tensor) -> None:
        self.before, self.last, self.line = before, last, location()
        self.source_written_at: Node | None = None
        self.is_refused = False
        self._tensors = x, result
        self._values = _functional_value(x), _functional_value(result)
        self.is_functional = self._values[0] is not None

    def note(self, args: Any) -> None:
        """Notes a write that preceded a call with these arguments, or that the call reads."""
        source, copy = self._values
        if source is None or self.is_refused:
            return
        x, result = self._tensors
        if _functional_value(result) is not copy:
            self.is_refused = True
        elif self.source_written_at is None and _functional_value(x) is not source:
            nodes, graph = _nodes(), self.last.graph
            self.source_written_at = (nodes if nodes is graph._root else graph._root).prev
        if self.source_written_at is not None:
            read = [leaf for leaf in pytree.leaves(args) if isinstance(leaf, Tensor)]
            self.is_refused = self.is_refused or any(_C.share_memory(leaf, result) for leaf in read)


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
            **{function: self._selecting(function) for function in (torch.select, Tensor.select)},
            **{function: _narrowing(function) for function in (torch.narrow, Tensor.narrow)},
        }

    def _get(self, x: Any, subscript: Any) -> Any:
        several = _counted(subscript)
        if several is None:
            with torch.DisableTorchFunction():  # make_fx's mode bypasses NOTE [Subscripts]
                return operator.getitem(*_with_symbols_as_slices(x, subscript))
        nodes = _nodes()
        before = nodes and nodes.prev
        picked = symbolic_getitem(x, several)
        if nodes and before and not any(map(is_advanced, several)):  # torch too copies with those
            self._picks.append(_RecordedIndex(before, nodes.prev, x, picked))
        return picked

    def _selecting(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def select(input: Any, dim: Any, index: Any) -> Any:
            if not _is_number(index) or not isinstance(dim, int):
                return func(input, dim, index)
            return self._get(input, (*[slice(None)] * (dim % input.dim()), index))

        return select

    def note_call(self, args: Any) -> None:
        """Looks for writes that the graph won't show, before a function is called."""
        for pick in self._picks:
            pick.note(args)

    def refuse_what_differs(self, whole: Graph) -> None:
        """Raises if some x[i] is written to, or is read after x was written to.

        Args:
            whole: the captured graph, to which the graphs of loops and branches belong.
        """
        self.note_call(())
        live: dict[Graph, set[Node]] = {}
        for pick in self._picks:
            graph = pick.last.graph
            if graph not in live:
                live[graph] = _live(graph)
            if pick.is_refused or _is_read_after_write(pick, live[graph]):
                raise IndexedWriteError(self._func, pick.line, in_subgraph=graph is not whole)


def _is_read_after_write(pick: _RecordedIndex, live: set[Node]) -> bool:
    """Whether the copy is written to, or is read after its source was written to."""
    nodes = _between(pick.before, pick.last)
    gathering = {node for node in nodes if node.target in _GATHERING}
    sources = {memory_of(node.all_input_nodes[0]) for node in gathering} - gathering
    is_changed = False
    for node in _between(pick.last, pick.last.graph._root):
        is_changed = is_changed or node.prev is pick.source_written_at
        if node not in live or (pick.is_functional and node.op != "output"):
            continue  # what saved a functionalized tensor has its value before the write
        read = {memory_of(operand) for operand in node.all_input_nodes if is_tensor(operand)}
        if is_changed and read & gathering:
            return True
        if is_write(node):
            written = {memory_of(operand) for operand in written_by(node)}
            if written & gathering:
                return True
            is_changed = is_changed or bool(written & sources)
    return False


def _set(x: Any, subscript: Any, value: Any) -> None:
    several = _counted(subscript)
    if several is None:
        with torch.DisableTorchFunction():
            operator.setitem(*_with_symbols_as_slices(x, subscript), value)
    else:
        symbolic_setitem(x, several, value)


def _with_symbols_as_slices(x: Any, subscript: Any) -> tuple[Any, Any]:
    """Indexes a tensor by slices of one element where the index is a symbolic integer.

    torch specializes such an index to a number. Returns what is to be indexed by the rest.
    """
    several = subscript if isinstance(subscript, tuple) else (subscript,)
    symbolic = [isinstance(index, torch.SymInt) for index in several]
    if not any(symbolic) or any(map(is_advanced, several)):
        return x, subscript
    if any(index < 0 for index, is_one in zip(several, symbolic, strict=True) if is_one):
        return x, subscript
    slices = [
        slice(index, index + 1) if is_one else index
        for index, is_one in zip(several, symbolic, strict=True)
    ]
    rest = [
        0 if is_one else (index if index is ... else slice(None))
        for index, is_one in zip(several, symbolic, strict=True)
        if is_one or type(index) is not int
    ]
    return operator.getitem(x, tuple(slices)), tuple(rest)


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
    if all(_is_known_or_batched(index) for index in several if _is_number(index)):
        return None
    return tuple(SymbolicIndex(index) if _is_number(index) else index for index in several)


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


def _is_number(index: Any) -> bool:
    return (
        isinstance(index, Tensor)
        and index.dim() == 0
        and index.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    )


def _functional_value(x: Tensor) -> Tensor | None:
    """The value of the functional tensor in x; None if there is none."""
    while is_wrapped(x):
        if torch_private._is_functional_tensor(x):
            torch_private._functionalize_sync(x)
            return functorch.get_unwrapped(x)  # type: ignore[no-any-return]
        x = functorch.get_unwrapped(x)
    return None


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
