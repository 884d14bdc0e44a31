"""Traces the operators that a function calls as a graph, and changes nothing for other threads.

torch's make_fx replaces the calls of all modules, the current tracer and the flag that says that
torch.fx traces, for all threads, and afterwards restores what it found there. If one trace ended
inside another one of another thread, some of that would stay, so torch.compile holds a lock. No
lock can be held while a captured function runs: it may wait for a thread that takes the lock. So
nothing is replaced here. Modules are traced through in any case, and the modes that see operators
belong to the thread.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx import traceback as node_metadata
from torch.fx.experimental import proxy_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx.nodes import memory_of
from torchlayers.fx.subgraph_tracer import SubgraphTracer

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# What a node's metadata says of its values; anything else describes a place in a program.
_OF_VALUES = ("val", "eager_input_vals")


def trace_operators(
    function: Callable[..., Any],
    *inputs: Any,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    is_lazy: bool = False,
    has_subgraphs: bool = False,
    line: Callable[[], str | None] | None = None,
) -> GraphModule:
    """Calls function(*inputs) and returns the graph of its operators, as torch's make_fx does.

    Args:
        inputs: tensors, fake or not, symbolic sizes, and lists of them. Each leaf is a placeholder.
        decompositions: functions that are traced in place of these operators.
        is_lazy: generate the graph's code when it is first needed.
        has_subgraphs: the function calls torch's higher-order operators itself, and not through
            ``with_subgraphs``; nothing else of the user's runs in it.
        line: called at each operator; nodes get its result in ``meta["stack_trace"]``.
    """
    tracer = _Tracer(line, decompositions or {})
    mode = proxy_tensor.ProxyTorchDispatchMode(tracer, "real")
    # A cached cast of a parameter would be a tensor that no operator of the graph computes.
    uncached = proxy_tensor.disable_autocast_cache()
    with mode, proxy_tensor.decompose(tracer.decompositions), uncached:
        with proxy_tensor.disable_proxy_modes_tracing():
            tracer.place(inputs)
        with with_subgraphs(nested=True) if has_subgraphs else contextlib.nullcontext():
            result = function(*inputs)
        tracer.create_node("output", "output", (tracer.create_arg(tracer.proxies(result)),), {})
    _simplify_sizes(tracer.graph)
    kind: Any = GraphModule
    if is_lazy:
        kind = lookup("torch.fx._lazy_graph_module._LazyGraphModule", GraphModule)
    name = getattr(function, "__name__", "graph")
    return kind(tracer.root, tracer.graph, name)  # type: ignore[no-any-return]


def records_operators() -> bool:
    """Whether operators are captured here, rather than only run for their shapes."""
    return proxy_tensor.get_proxy_mode() is not None


def with_subgraphs(nested: bool = False) -> contextlib.AbstractContextManager[None]:
    """Inside, torch's higher-order operators can be called while operators are traced here.

    Args:
        nested: the functions that they take call such operators themselves.
    """
    mode: Any = proxy_tensor.get_proxy_mode()
    if mode is None or not isinstance(mode.tracer, _Tracer):
        return contextlib.nullcontext()
    trace = functools.partial(trace_operators, has_subgraphs=nested)
    return SubgraphTracer(trace, mode.tracer.decompositions).current()


class _Tracer(proxy_tensor.PythonKeyTracer):
    """A tracer that is not started by ``trace``, which would replace the calls of modules."""

    def __init__(
        self, line: Callable[[], str | None] | None, decompositions: Mapping[Any, Any]
    ) -> None:
        super().__init__()
        self.decompositions = {
            aten.sym_numel.default: lambda x: math.prod(x.shape),
            **decompositions,
        }
        self.root = torch.nn.Module()
        self.graph = Graph(tracer_cls=proxy_tensor.PythonKeyTracer)
        self.tensor_attrs = {}
        self.tensor_tracker = self._tracked = _TrackedTensors()
        self._line = line

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        if node_metadata.has_preserved_node_meta():
            # Another thread traces with metadata, such as the partition of each node.
            for name in [name for name in node.meta if name not in _OF_VALUES]:
                del node.meta[name]
        if self._line is not None and node.op == "call_function" and (line := self._line()):
            node.meta["stack_trace"] = line
        return node

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and (node := self._tracked.node_of_memory(a)) is not None:
            return node
        if not isinstance(a, torch.Generator):
            return super().create_arg(a)
        # torch 2.11 and 2.12 have no place for one in a graph.
        names = (name for name, value in vars(self.root).items() if value is a)
        name = next(names, None) or self.get_fresh_qualname("_generator")
        setattr(self.root, name, a)
        return self.create_node("get_attr", name, (), {})

    def place(self, inputs: Sequence[Any]) -> None:
        """Makes placeholders of the inputs."""
        leaves = pytree.leaves(inputs)
        names = [f"arg{i}_1" for i in range(len(leaves))]
        proxies = [self.create_proxy("placeholder", name, (), {}, name=name) for name in names]
        proxy_tensor.track_tensor_tree(leaves, proxies, constant=None, tracer=self)

    def proxies(self, result: Any) -> Any:
        """The result with proxies in place of tensors and symbolic sizes that were computed."""

        def proxy_of(leaf: Any) -> Any:
            slot: Any
            if isinstance(leaf, Tensor):
                slot = proxy_tensor.get_proxy_slot(leaf, self, None)
                return leaf if slot is None else slot.proxy
            if isinstance(leaf, _SYMBOLIC):
                slot = proxy_tensor.get_proxy_slot(leaf, self)
                return slot.force()
            return leaf

        return pytree.map_leaves(proxy_of, result)


class _TrackedTensors(WeakTensorKeyDictionary):
    """The proxies of tensors, and the nodes of the memory that these have.

    No operator constructs a ``Parameter(torch.ones(3))``, which is a new tensor on the same memory.
    As a constant of the graph it would be written to by each run; and inside a layer, where the
    tensor is wrapped, its elements may be those of a fake tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_memory: dict[Any, tuple[Any, Node]] = {}

    def __setitem__(self, tensor: Tensor, tracked: Any) -> None:
        super().__setitem__(tensor, tracked)
        node = getattr(getattr(tracked, "proxy", None), "node", None)
        if node is None or (where := _memory_of(tensor)) is None:
            return
        # A real tensor on the memory of an input is a constant like any other.
        if isinstance(tensor, FakeTensor) or memory_of(node).op == "call_function":
            weak: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._by_memory[where] = weak, node

    def node_of_memory(self, tensor: Tensor) -> Node | None:
        """The node of a tensor that was traced and has the same elements; None if there is none."""
        where = _memory_of(tensor) if self._by_memory else None
        weak, node = self._by_memory.get(where, (None, None))
        return None if weak is None or weak.expired() else node


def _memory_of(tensor: Tensor) -> Any:
    """Which elements of which storage the tensor has; None where it has no storage."""
    storage = storage_of(tensor)
    if storage is None:
        return None
    numbers = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
    elements = (n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers)
    return storage, *elements, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _simplify_sizes(graph: Graph) -> None:
    """Removes symbolic sizes that nothing reads, and merges equal ones: each use computed them."""

    def is_size(node: Node) -> bool:
        return isinstance(node.meta.get("val"), _SYMBOLIC)

    if not any(map(is_size, graph.nodes)):
        return
    graph.eliminate_dead_code(
        lambda node: (
            node.is_impure() or not is_size(node) or node.target is aten._local_scalar_dense.default
        )
    )
    first: dict[Any, Node] = {}
    for node in filter(is_size, [*graph.nodes]):
        size = node.meta["val"]
        same = first.setdefault((type(size), size.node.expr), node)
        if same is not node and node.op != "placeholder":
            node.replace_all_uses_with(same)
            graph.erase_node(node)
