"""Step 0 for FX, if a graph can't be used unchanged: retraces it on fake tensors.

Parameters and buffers become inputs, composite operators are decomposed, and in-place
operators are replaced; their writes to buffers become outputs.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx import GraphModule, Node

from torchlayers.core import pytree
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import HigherOrderOperator
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.graph.errors import GraphError
from torchlayers.graph.fx.arguments import places
from torchlayers.graph.fx.normalize import (
    MutableState,
    NormalizedGraph,
    copy_body,
    copy_placeholders,
    fake_copy,
    is_view,
    lift_attributes,
    mode_of,
    plain,
    recorded_structure,
    structure_of,
    subgraphs_of,
    writes,
)
from torchlayers.graph.node_location import locate
from torchlayers.modules.functional_call import functional_call


class Retrace:
    """Retraces a graph, operator by operator, on fake tensors."""

    def __init__(
        self,
        module: GraphModule,
        example_inputs: Sequence[Any] | None,
        argnums: int | Sequence[int] | None,
    ) -> None:
        self.module = module
        self.signature = inspect.signature(module.forward)
        self.structure: pytree.TreeSpec | None = None
        self.flat = recorded_structure(module) is not None
        self.leaves = self._arguments(example_inputs)
        self.argnums = places(argnums, len(self.leaves))
        self.names, self.state = _used_state(module)
        self.mode = mode_of(self.leaves)
        self.result: pytree.TreeSpec | None = None
        self.line: str | None = None  # of the node that runs

    def _arguments(self, example_inputs: Sequence[Any] | None) -> list[Any]:
        if example_inputs is not None:
            try:
                bound = self.signature.bind(*example_inputs)
            except TypeError as error:
                raise GraphError(
                    f"torchlayers: differentiate: example_inputs are not the arguments of a call "
                    f"of the graph: {error}."
                ) from None
            bound.apply_defaults()
            leaves, self.structure = pytree.flatten(tuple(bound.arguments.values()))
            return leaves
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        for node in placeholders:
            if "val" not in node.meta:
                raise GraphError(
                    "torchlayers: differentiate: the graph has to be retraced, but has no recorded "
                    f"value for its input `{node.name}`. Pass example_inputs, the arguments of one "
                    "call."
                )
        return [node.meta["val"] for node in placeholders]

    def program(self) -> NormalizedGraph:
        try:
            recorded = self._trace(self._replay, requires_grad=True)
        except GraphError:  # inputs that require gradients can't be written to
            recorded = self._trace(self._replay, requires_grad=False)
        _check_writes(recorded.graph, self._input_names()[: len(self.leaves)])
        if any(writes(node) for node in recorded.graph.nodes):
            # In a graph without writes every value has one definition.
            replay = _Interpreter(recorded, self._note_line)
            recorded = self._trace(functionalize(replay.run), requires_grad=False)
        recorded.graph.eliminate_dead_code()
        graph = fx.Graph()
        copied: dict[Node, Any] = {}
        copy_placeholders(recorded.graph, graph, copied, self._input_names())
        constants = lift_attributes(recorded, graph, copied)
        updated = _take_updates(recorded.graph)
        leaves = list(plain(copy_body(recorded.graph, graph, copied)))
        assert self.result is not None
        state = [*self.state, *constants]
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        updates: list[tuple[MutableState, int]] = []
        written: list[tuple[int, int]] = []
        for target, new in updated:
            place = placeholders.index(copied[target])
            if place < len(self.leaves):
                written.append((place, len(leaves)))
            else:
                updates.append((state[place - len(self.leaves)], len(leaves)))
            leaves.append(copied[new])
        graph.output(tuple(leaves))
        return NormalizedGraph(
            graph=graph,
            root=subgraphs_of(recorded),
            mode=self.mode,
            signature=self.signature,
            arguments=len(self.leaves),
            expected=self.leaves,
            structure=self.structure or structure_of(self.module, self.signature),
            result=self.result,
            state=state,
            updates=updates,
            written=written,
        )

    def _input_names(self) -> list[str]:
        names = [str(n.target) for n in self.module.graph.nodes if n.op == "placeholder"]
        if len(names) != len(self.leaves):
            names = [f"arg{i}" for i in range(len(self.leaves))]
        return [*names, *(state.name for state in self.state)]

    def _replay(self, *values: Any) -> list[Any]:
        arguments = list(values[: len(self.leaves)])
        if not self.flat and self.structure is not None:
            arguments = _positional(self.signature, pytree.unflatten(arguments, self.structure))
        tensors = values[len(self.leaves) :]
        attributes = {name: tensors[place] for name, place in self.names.items()}
        with torch.enable_grad():
            replay = _Replay(self.module, attributes, self._note_line)
        output = replay.run(*arguments, enable_io_processing=False)
        leaves, self.result = pytree.flatten(plain(self.module.graph.process_outputs(output)))
        return leaves

    def _note_line(self, node: Node) -> None:
        self.line = node.meta.get("stack_trace")

    def _trace(self, function: Callable[..., Any], requires_grad: bool) -> GraphModule:
        inputs = [
            fake_copy(
                leaf, self.mode, requires_grad and (self.argnums is None or i in self.argnums)
            )
            for i, leaf in enumerate(self.leaves)
        ]
        for state in self.state:
            tensor = state.read()
            inputs.append(fake_copy(tensor, self.mode, requires_grad and tensor.requires_grad))
        try:
            # The Python dispatcher has a batch norm whose schema declares its writes.
            with self.mode, lookup("torch._dispatch.python.enable_python_dispatcher")():
                return trace_operators(
                    function,
                    *inputs,
                    has_subgraphs=any(map(_has_functions, self.module.graph.nodes)),
                    line=lambda: self.line,
                )
        except GraphError:
            raise
        except Exception as error:
            raise GraphError(
                f"torchlayers: differentiate: the graph can't be retraced: {_first_line(error)}"
            ) from error


def _has_functions(node: Node) -> bool:
    return isinstance(node.target, HigherOrderOperator)


class _Interpreter(fx.Interpreter):
    """Calls ``note`` with each node before it runs it."""

    def __init__(self, module: GraphModule, note: Callable[[Node], None]) -> None:
        super().__init__(module)
        self._note = note

    def run_node(self, node: Node) -> Any:
        self._note(node)
        return super().run_node(node)


class _Replay(_Interpreter):
    """Runs the graph with given parameters, buffers and constants."""

    def __init__(
        self,
        module: GraphModule,
        attributes: dict[str, Tensor],
        note: Callable[[Node], None],
    ) -> None:
        super().__init__(module, note)
        self.attributes = attributes

    def run_node(self, node: Node) -> Any:
        # Autograd would turn this loop into another one. Whether it has to be differentiated is
        # not known yet.
        is_loop = node.target is higher_order.while_loop
        try:
            with torch.no_grad() if is_loop else nullcontext():
                result = super().run_node(node)
        except GraphError:
            raise
        except Exception as error:
            raise GraphError(
                f"torchlayers: differentiate: {locate(node)}, can't be traced: {_first_line(error)}"
            ) from error
        if torch.is_grad_enabled() and not _is_no_grad_region(node):
            return result
        # A graph has no grad mode, so what no_grad detaches has to be detached explicitly.
        return pytree.map_leaves(_detached, result)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in self.attributes:
            return self.attributes[target]
        return super().get_attr(target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        prefix = f"{target}."
        inside = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.attributes.items()
            if name.startswith(prefix)
        }
        return functional_call(self.fetch_attr(target), inside, args, kwargs, tie_weights=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_no_grad_region(node: Node) -> bool:
    """Whether the node is torch.export's form of ``with torch.no_grad()``."""
    return (
        isinstance(node.target, HigherOrderOperator)
        and str(node.target) == "wrap_with_set_grad_enabled"
        and node.args[0] is False
    )


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _used_state(module: GraphModule) -> tuple[dict[str, int], list[MutableState]]:
    """Returns the position of each parameter, buffer or constant used, and the list of these."""
    names: dict[str, int] = {}
    state: list[MutableState] = []
    by_tensor: dict[int, int] = {}
    for node in module.graph.nodes:
        for name in _names_used(module, node):
            attribute = MutableState(module, name)
            tensor = attribute.read()
            if not isinstance(tensor, Tensor):
                continue
            if id(tensor) not in by_tensor:
                by_tensor[id(tensor)] = len(state)
                state.append(attribute)
            names[name] = by_tensor[id(tensor)]
    return names, state


def _names_used(module: GraphModule, node: Node) -> list[str]:
    if node.op == "get_attr":
        return [str(node.target)]
    if node.op != "call_module":
        return []
    inside = module.get_submodule(str(node.target))
    tensors = [
        *inside.named_parameters(remove_duplicate=False),
        *inside.named_buffers(remove_duplicate=False),
    ]
    return [f"{node.target}.{name}" for name, _ in tensors]


def _check_writes(graph: fx.Graph, arguments: Sequence[str]) -> None:
    """Rejects writes whose meaning functionalize would silently change."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    names = dict(zip(inputs, arguments, strict=False))  # the state comes after them
    for node in filter(writes, graph.nodes):
        changed, rest = _memory_of(node)
        if rest is not None and (changed in names or _is_read_after(rest, node)):
            raise GraphError(
                f"torchlayers: differentiate: {locate(node)}, writes to a detached alias of "
                f"`{names.get(changed, changed.name)}`, which autograd does not track, although "
                "gradients flow through it. Return the new value instead."
            )
        if changed in names and torch.Tag.inplace_view in node.target.tags:
            raise GraphError(
                f"torchlayers: differentiate: {locate(node)}, changes the shape of the graph's "
                f"argument `{names[changed]}` in place. Return the new shape instead."
            )


def _memory_of(write: Node) -> tuple[Any, list[Node] | None]:
    """Returns the node that made the memory that is written to; and if that is detached first,
    the nodes from the detached one back to that node, else None."""
    changed: Any = write.args[0]
    path: list[Node] | None = None
    while isinstance(changed, Node) and is_view(changed):
        path = [] if changed.target is aten.detach.default else path
        if path is not None:
            path.append(changed)
        changed = changed.args[0]
    return changed, path and [*path, changed]


def _is_read_after(path: list[Node], write: Node) -> bool:
    """Whether memory shared with a detached tensor is used after a write to that tensor."""
    detached, *others = path
    if others[-1].op == "placeholder":
        return False  # state
    return any(
        user > write for node in others for user in node.users if user not in (detached, *others)
    )


def _take_updates(graph: fx.Graph) -> list[tuple[Node, Node]]:
    """Removes the writes to inputs, which are all at the end, and returns inputs and new values."""
    updates = []
    for node in reversed(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            updates.append((node.args[0], node.args[1]))
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        elif writes(node):
            raise GraphError(
                f"torchlayers: differentiate: {locate(node)}, writes to a value in place and can't "
                "be functionalized. Use its out-of-place variant."
            )
    return updates[::-1]


def _positional(signature: inspect.Signature, values: Sequence[Any]) -> list[Any]:
    """Returns the bound arguments as the interpreter takes them: those of ``*args`` one by one."""
    positional: list[Any] = []
    for parameter, argument in zip(signature.parameters.values(), values, strict=True):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(argument)
        else:
            positional.append(argument)
    return positional
