"""Step 0 for FX: any graph that can be traced, as a flat, functional graph of ATen operators.

A Program takes the original's arguments flattened, then its parameters, buffers and constants.
A graph that make_fx recorded is taken as it is. Others (symbolic_trace's, torch.export's,
those with in-place operators) are traced anew, on fake tensors.
"""

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.func import functional_call, functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from torchlayers import tree
from torchlayers.graph.errors import GraphError
from torchlayers.graph.where import where

aten = torch.ops.aten

# These write to their running statistics, and their schemas don't say so.
_WRITES_UNSAID = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)


# An operator that a graph recorded without autograd has instead of one that has a derivative.
_WITH_DERIVATIVE = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}

# Operators in the graphs made here that take values however they come: of other strides than
# those that were recorded, or lazily conjugated.
LENIENT = (aten.reshape.default, aten.resolve_conj.default)


@dataclass
class State:
    """A parameter, buffer or constant of a module, read at every call."""

    owner: torch.nn.Module = field(repr=False)
    name: str

    def read(self) -> Any:
        value: Any = self.owner
        for part in self.name.split("."):
            value = getattr(value, part)
        return value


@dataclass
class Program:
    graph: fx.Graph  # placeholders are the arguments' leaves, then state
    root: torch.nn.Module  # where the graph's subgraphs are (branches of cond)
    mode: FakeTensorMode  # of the values in meta["val"]
    signature: inspect.Signature
    arguments: int  # how many of the placeholders are arguments' leaves
    structure: tree.TreeSpec | None  # of the arguments, where an example showed it
    result: tree.TreeSpec  # of the outputs
    state: list[State]
    updates: list[tuple[State, int]] = field(default_factory=list)  # the state an output updates


def program_of(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    argnums: Sequence[int] | None,
) -> Program:
    """The graph in the form that the other steps take. The graph itself is not changed.

    Operators are recorded as autograd has them run for the arguments to differentiate by.

    Raises:
        GraphError: it can't be traced, or doesn't record what tracing needs to know.
    """
    module = graph.module() if isinstance(graph, ExportedProgram) else graph
    assert isinstance(module, GraphModule)
    if all(map(_is_plain, module.graph.nodes)):
        return _as_it_is(module)
    return _Retrace(module, example_inputs, argnums).program()


def value(node: Any) -> Any:
    """What is known of a node's result: fake tensors, symbolic numbers."""
    return node.meta.get("val") if isinstance(node, Node) else node


def writes(node: Node) -> bool:
    """Whether the operator changes one of its arguments."""
    if not isinstance(node.target, OpOverload):
        return False
    return node.target._schema.is_mutable or node.target in _WRITES_UNSAID


def _is_plain(node: Node) -> bool:
    """Whether a graph of such nodes can be taken as it is."""
    if node.op in ("get_attr", "output") or isinstance(node.target, HigherOrderOperator):
        return True
    if "val" not in node.meta:
        return False
    if isinstance(node.target, OpOverload):
        name = node.target.name()  # type: ignore[no-untyped-call]
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        )
        return not writes(node) and (not composite or node.target in LENIENT)
    # getitem of several results, and arithmetic of symbolic numbers.
    return node.op == "placeholder" or getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "torch",
        "torch.fx.experimental.symbolic_shapes",
        "torch.utils._sympy.functions",
    )


def _as_it_is(module: GraphModule) -> Program:
    graph = fx.Graph()
    mode = _mode([n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"])
    copied: dict[Node, Any] = {}
    arguments = _copy_placeholders(module.graph, graph, copied, ())
    state = _lift_attributes(module, graph, copied)
    output = _copy_body(module.graph, graph, copied)
    leaves, result = tree.flatten(_plain(output))
    codegen = module.graph._codegen
    if isinstance(codegen, fx.graph._PyTreeCodeGen) and codegen.pytree_info.out_spec is not None:
        result = codegen.pytree_info.out_spec
    graph.output(tuple(leaves))
    return Program(
        graph=graph,
        root=_subgraphs(module),
        mode=mode,
        signature=inspect.signature(module.forward),
        arguments=arguments,
        structure=None,
        result=result,
        state=state,
    )


def _copy_placeholders(
    old: fx.Graph, new: fx.Graph, copied: dict[Node, Any], names: Sequence[str]
) -> int:
    """Copies the inputs, under these names where some are given, and counts them."""
    placeholders = [node for node in old.nodes if node.op == "placeholder"]
    names = names or [str(node.target) for node in placeholders]
    for node, name in zip(placeholders, names, strict=True):
        copied[node] = new.placeholder(re.sub(r"\W", "_", name))
        copied[node].meta = dict(node.meta)
    return len(placeholders)


def _lift_attributes(module: GraphModule, new: fx.Graph, copied: dict[Node, Any]) -> list[State]:
    """Makes an input of every tensor that the graph takes from its module."""
    state: list[State] = []
    by_tensor: dict[int, Node] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        found = State(module, str(node.target))
        tensor = found.read()
        if not isinstance(tensor, Tensor):
            continue  # a subgraph
        if id(tensor) not in by_tensor:
            placeholder = new.placeholder(str(node.target).replace(".", "_"))
            placeholder.meta["val"] = _fake_like(tensor)
            by_tensor[id(tensor)] = placeholder
            state.append(found)
        copied[node] = by_tensor[id(tensor)]
    return state


def _copy_body(old: fx.Graph, new: fx.Graph, copied: dict[Node, Any]) -> Any:
    """Copies the operators, and returns the old graph's result in new nodes."""
    for node in old.nodes:
        if node.op == "output":
            return fx.node.map_arg(node.args[0], lambda n: copied[n])
        if node in copied:
            continue
        if node.target is aten.copy.default:
            copied[node] = _copied_value(new, copied, node)
            continue
        copied[node] = new.node_copy(node, lambda n: copied[n])
        copied[node].target = _WITH_DERIVATIVE.get(node.target, node.target)
        _take_apart(copied[node])
    raise GraphError("torchlayers: differentiate: the graph has no output node.")


def _copied_value(new: fx.Graph, copied: dict[Node, Any], node: Node) -> Node:
    """copy(x, y) is y as x is: it has no derivative, and what it is made of here does."""
    old, source = node.args[:2]
    assert isinstance(old, Node) and isinstance(source, Node)
    found: Node = copied[source]
    like, given = value(old), value(source)
    if (like.dtype, like.device) != (given.dtype, given.device):
        options = {"dtype": like.dtype, "device": like.device}
        found = new.call_function(aten._to_copy.default, (found,), options)
        found.meta = dict(node.meta)
        found.meta["val"] = given.to(**options)
    if like.shape != given.shape:
        expanded = value(found).expand(like.shape)
        found = new.call_function(aten.expand.default, (found, list(like.shape)))
        found.meta = {**node.meta, "val": expanded}
    return found


def _take_apart(node: Node) -> None:
    """Gives the operator the items of a list that another one made, instead of the list."""
    if node.op != "call_function" or node.target is operator.getitem:
        return

    def items(argument: Node) -> Any:
        val = value(argument)
        if not isinstance(val, (list, tuple)):
            return argument
        taken = []
        for i, item in enumerate(val):
            taken.append(node.graph.call_function(operator.getitem, (argument, i)))
            taken[-1].meta["val"] = item
        return taken

    with node.graph.inserting_before(node):
        node.args = fx.node.map_arg(node.args, items)


class _Retrace:
    """Records a graph anew, operator by operator, on fake tensors."""

    def __init__(
        self,
        module: GraphModule,
        example_inputs: Sequence[Any] | None,
        argnums: Sequence[int] | None,
    ) -> None:
        self.module = module
        self.argnums = argnums
        self.signature = inspect.signature(module.forward)
        self.structure: tree.TreeSpec | None = None
        self.flat = isinstance(module.graph._codegen, fx.graph._PyTreeCodeGen)
        self.leaves = self._arguments(example_inputs)
        self.names, self.state = _used_state(module)
        self.mode = _mode(self.leaves)
        self.result: tree.TreeSpec | None = None

    def _arguments(self, example_inputs: Sequence[Any] | None) -> list[Any]:
        if example_inputs is not None:
            bound = self.signature.bind(*example_inputs)
            bound.apply_defaults()
            leaves, self.structure = tree.flatten(tuple(bound.arguments.values()))
            return leaves
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        for node in placeholders:
            if "val" not in node.meta:
                raise GraphError(
                    f"torchlayers: differentiate: the graph has to be traced anew, and does not "
                    f"say what its input `{node.name}` is. Pass example_inputs, the arguments of "
                    "one call."
                )
        return [node.meta["val"] for node in placeholders]

    def program(self) -> Program:
        try:
            recorded = self._trace(self._replay, requires_grad=True)
        except GraphError:  # inputs that require gradients refuse to be written to
            recorded = self._trace(self._replay, requires_grad=False)
        if any(writes(node) for node in recorded.graph.nodes):
            # In a graph without writes every value has one definition.
            recorded = self._trace(functionalize(fx.Interpreter(recorded).run), requires_grad=False)
        recorded.graph.eliminate_dead_code()
        graph = fx.Graph()
        copied: dict[Node, Any] = {}
        _copy_placeholders(recorded.graph, graph, copied, self._input_names())
        constants = _lift_attributes(recorded, graph, copied)
        updated = _take_updates(recorded.graph)
        leaves = list(_plain(_copy_body(recorded.graph, graph, copied)))
        assert self.result is not None
        state = [*self.state, *constants]
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        updates = []
        for target, new in updated:
            place = placeholders.index(copied[target]) - len(self.leaves)
            if place < 0:
                raise GraphError(
                    f"torchlayers: differentiate: the graph writes to its argument "
                    f"`{copied[target].name}`. Return the new value instead of writing it."
                )
            updates.append((state[place], len(leaves)))
            leaves.append(copied[new])
        graph.output(tuple(leaves))
        return Program(
            graph=graph,
            root=_subgraphs(recorded),
            mode=self.mode,
            signature=self.signature,
            arguments=len(self.leaves),
            structure=self.structure,
            result=self.result,
            state=state,
            updates=updates,
        )

    def _input_names(self) -> list[str]:
        names = [str(n.target) for n in self.module.graph.nodes if n.op == "placeholder"]
        if len(names) != len(self.leaves):
            names = [f"arg{i}" for i in range(len(self.leaves))]
        return [*names, *(state.name for state in self.state)]

    def _replay(self, *values: Any) -> list[Any]:
        arguments = list(values[: len(self.leaves)])
        if not self.flat and self.structure is not None:
            arguments = _positional(self.signature, tree.unflatten(arguments, self.structure))
        tensors = values[len(self.leaves) :]
        attributes = {name: tensors[place] for name, place in self.names.items()}
        with torch.enable_grad():
            output = _Replay(self.module, attributes).run(*arguments, enable_io_processing=False)
        leaves, self.result = tree.flatten(self.module.graph.process_outputs(output))
        return leaves

    def _trace(self, function: Callable[..., Any], requires_grad: bool) -> GraphModule:
        inputs = [
            _fresh(leaf, self.mode, requires_grad and (self.argnums is None or i in self.argnums))
            for i, leaf in enumerate(self.leaves)
        ]
        for state in self.state:
            tensor = state.read()
            inputs.append(_fresh(tensor, self.mode, requires_grad and tensor.requires_grad))
        try:
            # Python's dispatcher has the batch norm whose schema says what it writes.
            with self.mode, preserve_node_meta(), enable_python_dispatcher():
                return make_fx(function, _allow_non_fake_inputs=True)(*inputs)
        except GraphError:
            raise
        except Exception as error:
            raise GraphError(
                f"torchlayers: differentiate: the graph can't be traced anew: {error}"
            ) from error


class _Replay(fx.Interpreter):
    """Runs the graph on parameters, buffers and constants that are given."""

    def __init__(self, module: GraphModule, attributes: dict[str, Tensor]) -> None:
        super().__init__(module)
        self.attributes = attributes

    def run_node(self, node: Node) -> Any:
        # Autograd would make another loop of this one. Whether it has to be differentiated is
        # known later.
        is_loop = node.target is torch.ops.higher_order.while_loop
        try:
            with torch.no_grad() if is_loop else nullcontext():
                result = super().run_node(node)
        except GraphError:
            raise
        except Exception as error:
            raise GraphError(
                f"torchlayers: differentiate: {where(node)}, can't be traced: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        if torch.is_grad_enabled() and not _is_no_grad_region(node):
            return result
        # What no_grad cuts has to stay cut in a graph, which has no grad mode.
        return tree.map_leaves(_cut, result)

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


def _is_no_grad_region(node: Node) -> bool:
    """Whether the node is how torch.export writes ``with torch.no_grad()``."""
    return (
        isinstance(node.target, HigherOrderOperator)
        and str(node.target) == "wrap_with_set_grad_enabled"
        and node.args[0] is False
    )


def _cut(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _used_state(module: GraphModule) -> tuple[dict[str, int], list[State]]:
    """Where each parameter, buffer or constant that the graph uses is among the state."""
    names: dict[str, int] = {}
    state: list[State] = []
    by_tensor: dict[int, int] = {}
    for node in module.graph.nodes:
        for name in _names_used(module, node):
            found = State(module, name)
            tensor = found.read()
            if not isinstance(tensor, Tensor):
                continue
            if id(tensor) not in by_tensor:
                by_tensor[id(tensor)] = len(state)
                state.append(found)
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


def _subgraphs(module: GraphModule) -> torch.nn.Module:
    """A module of our own, to add to, with the subgraphs that get_attr nodes name."""
    root = torch.nn.Module()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            inside = State(module, str(node.target)).read()
            if isinstance(inside, torch.nn.Module):
                root.add_module(str(node.target), inside)
    return root


def _take_updates(graph: fx.Graph) -> list[tuple[Node, Node]]:
    """Takes the writes to inputs, which are all at the end, out of the graph."""
    updates = []
    for node in reversed(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            updates.append((node.args[0], node.args[1]))
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        elif writes(node):
            raise GraphError(
                f"torchlayers: differentiate: {where(node)}, writes to a value in place, and "
                "can't be made to do without. Use the operator that returns a new one."
            )
    return updates[::-1]


def _positional(signature: inspect.Signature, values: Sequence[Any]) -> list[Any]:
    """The bound arguments as the interpreter takes them: those of ``*args`` one by one."""
    found: list[Any] = []
    for parameter, given in zip(signature.parameters.values(), values, strict=True):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found.extend(given)
        else:
            found.append(given)
    return found


def _plain(output: Any) -> Any:
    """fx's immutable lists and dicts as Python's."""
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(_plain(item) for item in output)
    if isinstance(output, list):
        return [_plain(item) for item in output]
    if isinstance(output, dict):
        return {key: _plain(item) for key, item in output.items()}
    return output


def _mode(values: Sequence[Any]) -> FakeTensorMode:
    """The mode that symbolic shapes belong to; a new one where there are none."""
    for leaf in tree.leaves(list(values)):
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode
    return FakeTensorMode()


def _fake_like(tensor: Tensor) -> Tensor:
    with FakeTensorMode():
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


def _fresh(tensor: Any, mode: FakeTensorMode, requires_grad: bool) -> Any:
    """A fake tensor like this one, which nothing has been done with."""
    if not isinstance(tensor, Tensor):
        return tensor
    with mode:
        fake = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
    differentiable = fake.is_floating_point() or fake.is_complex()
    return fake.requires_grad_(requires_grad and differentiable)
