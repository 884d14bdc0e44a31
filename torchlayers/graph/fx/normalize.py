"""Step 0 for FX: any traceable graph, as a flat, functional graph of ATen operators.

A NormalizedGraph takes the original's arguments flattened, then its parameters, buffers and
constants. A graph that make_fx captured is used unchanged. Others (symbolic_trace's,
torch.export's, those with in-place operators) are retraced on fake tensors.
"""

import inspect
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from torchlayers.core import operator_schema, pytree
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    torch_c,
)
from torchlayers.graph.errors import GraphError

# These write to their running statistics, but their schemas don't say so.
_WRITES_UNSAID = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)

# Operators with subgraphs that are kept; others, such as regions under no_grad, are inlined.
_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")

# Operators that a graph captured without autograd has instead of those with a derivative.
_WITH_DERIVATIVE = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}

# Operators used in generated graphs because they accept values with other strides than those that
# were captured, or lazily conjugated ones.
LENIENT = (aten.reshape.default, aten.resolve_conj.default)


@dataclass
class MutableState:
    """A parameter, buffer or constant of a module, read at every call."""

    owner: torch.nn.Module = field(repr=False)
    name: str

    def read(self) -> Any:
        value: Any = self.owner
        for part in self.name.split("."):
            value = getattr(value, part)
        return value


@dataclass
class NormalizedGraph:
    graph: fx.Graph  # placeholders are the arguments' leaves, then state
    root: torch.nn.Module  # has the graph's subgraphs (branches of cond)
    mode: FakeTensorMode  # of the values in meta["val"]
    signature: inspect.Signature
    arguments: int  # how many of the placeholders are arguments' leaves
    expected: list[Any]  # the known value of each of these
    structure: pytree.TreeSpec | None  # of the arguments, where it is known
    result: pytree.TreeSpec  # of the outputs
    state: list[MutableState]
    # State, and arguments' leaves, that are written in place, each with the output that is its new
    # value. These outputs are the last.
    updates: list[tuple[MutableState, int]] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)


def value(node: Any) -> Any:
    """Returns what is known of a node's result: fake tensors, symbolic numbers."""
    return node.meta.get("val") if isinstance(node, Node) else node


def fake_copy(value: Any, mode: FakeTensorMode, requires_grad: bool = False) -> Any:
    """Returns a fake tensor with the same layout and dtype, and without history."""
    if not isinstance(value, Tensor):
        return value
    with mode:
        fake = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    differentiable = fake.is_floating_point() or fake.is_complex()
    return fake.requires_grad_(requires_grad and differentiable)


def writes(node: Node) -> bool:
    """Whether the operator writes to one of its arguments."""
    return operator_schema.writes(node.target) or node.target in _WRITES_UNSAID


def is_view(node: Node) -> bool:
    """Whether the operator returns a view of its argument."""
    if node.target is aten.reshape.default:
        return True  # used instead of view in generated graphs
    return operator_schema.is_view(node.target)


def is_plain(module: GraphModule) -> bool:
    """Whether the graph can be used without retracing it."""
    return all(map(_is_plain, module.graph.nodes))


def _is_plain(node: Node) -> bool:
    if node.op in ("get_attr", "output"):
        return True
    if isinstance(node.target, HigherOrderOperator):
        return str(node.target) in _CONTROL_FLOW
    if "val" not in node.meta:
        return False
    if isinstance(node.target, OpOverload):
        name = node.target.name()  # type: ignore[no-untyped-call]
        composite = torch_c._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        return not writes(node) and (not composite or node.target in LENIENT)
    # getitem of several results, and arithmetic of symbolic numbers.
    return node.op == "placeholder" or getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "torch",
        "torch.fx.experimental.symbolic_shapes",
        "torch.utils._sympy.functions",
    )


def normalize_plain(module: GraphModule) -> NormalizedGraph:
    """Returns the program of a plain graph."""
    graph = fx.Graph()
    mode = mode_of([n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"])
    copied: dict[Node, Any] = {}
    arguments = copy_placeholders(module.graph, graph, copied, ())
    state = lift_attributes(module, graph, copied)
    output = copy_body(module.graph, graph, copied)
    leaves, result = pytree.flatten(plain(output))
    recorded = recorded_structure(module)
    if recorded is not None and recorded.out_spec is not None:
        result = recorded.out_spec
    graph.output(tuple(leaves))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    signature = inspect.signature(module.forward)
    return NormalizedGraph(
        graph=graph,
        root=subgraphs_of(module),
        mode=mode,
        signature=signature,
        arguments=arguments,
        expected=[value(node) for node in inputs[:arguments]],
        structure=structure_of(module, signature),
        result=result,
        state=state,
    )


def recorded_structure(module: GraphModule) -> Any:
    """The structures of the arguments and the result, if the graph records them, or None."""
    return getattr(module.graph._codegen, "pytree_info", None)


def structure_of(module: GraphModule, signature: inspect.Signature) -> pytree.TreeSpec | None:
    """Returns the structure of the arguments, if the graph records it."""
    recorded = recorded_structure(module)
    if recorded is None:
        return None
    spec = recorded.in_spec
    children = spec.children()
    if [child.type for child in children] == [tuple, dict]:
        arguments = [*children[0].children(), *children[1].children()]  # as torch.export writes it
        if len(arguments) == len(signature.parameters):
            children = arguments
    return pytree.TreeSpec(tuple, None, children)


def copy_placeholders(
    old: fx.Graph, new: fx.Graph, copied: dict[Node, Any], names: Sequence[str]
) -> int:
    """Copies the inputs, renamed if there are names, and returns their number."""
    placeholders = [node for node in old.nodes if node.op == "placeholder"]
    names = names or [str(node.target) for node in placeholders]
    for node, name in zip(placeholders, names, strict=True):
        copied[node] = new.placeholder(re.sub(r"\W", "_", name))
        copied[node].meta = dict(node.meta)
    return len(placeholders)


def lift_attributes(
    module: GraphModule, new: fx.Graph, copied: dict[Node, Any]
) -> list[MutableState]:
    """Replaces every tensor that the graph reads from its module with an input."""
    state: list[MutableState] = []
    by_tensor: dict[int, Node] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        attribute = MutableState(module, str(node.target))
        tensor = attribute.read()
        if not isinstance(tensor, Tensor):
            continue  # a subgraph
        if id(tensor) not in by_tensor:
            placeholder = new.placeholder(str(node.target).replace(".", "_"))
            placeholder.meta["val"] = fake_copy(tensor, FakeTensorMode())
            by_tensor[id(tensor)] = placeholder
            state.append(attribute)
        copied[node] = by_tensor[id(tensor)]
    return state


def copy_body(old: fx.Graph, new: fx.Graph, copied: dict[Node, Any]) -> Any:
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
    """Replaces copy(x, y) by operators that have a derivative: y with x's dtype, device, sizes."""
    old, source = node.args[:2]
    assert isinstance(old, Node) and isinstance(source, Node)
    copy: Node = copied[source]
    like, fake = value(old), value(source)
    if (like.dtype, like.device) != (fake.dtype, fake.device):
        options = {"dtype": like.dtype, "device": like.device}
        converted = fake.to(**options)
        copy = new.call_function(aten._to_copy.default, (copy,), options)
        copy.meta = {**node.meta, "val": converted}
    if like.shape != fake.shape:
        expanded = value(copy).expand(like.shape)
        copy = new.call_function(aten.expand.default, (copy, list(like.shape)))
        copy.meta = {**node.meta, "val": expanded}
    copy = new.call_function(aten.clone.default, (copy,))
    copy.meta = dict(node.meta)
    return copy


def _take_apart(node: Node) -> None:
    """Replaces an operator's list argument, if another operator returned it, with its elements."""
    if node.op != "call_function" or node.target is operator.getitem:
        return

    def elements_of(argument: Node) -> Any:
        val = value(argument)
        if not isinstance(val, (list, tuple)):
            return argument
        elements = []
        for i, element in enumerate(val):
            elements.append(node.graph.call_function(operator.getitem, (argument, i)))
            elements[-1].meta["val"] = element
        return elements

    with node.graph.inserting_before(node):
        node.args = fx.node.map_arg(node.args, elements_of)


def subgraphs_of(module: GraphModule) -> torch.nn.Module:
    """Returns a new module, to which more can be added, with the subgraphs of get_attr nodes."""
    root = torch.nn.Module()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            inside = MutableState(module, str(node.target)).read()
            if isinstance(inside, torch.nn.Module):
                root.add_module(str(node.target), inside)
    return root


def plain(output: Any) -> Any:
    """Converts fx's immutable lists and dicts to Python's."""
    if type(output) is tuple:
        return tuple(plain(element) for element in output)
    if type(output) in (list, immutable_list):
        return [plain(element) for element in output]
    if type(output) in (dict, immutable_dict):
        return {key: plain(inner) for key, inner in output.items()}
    return output


def mode_of(values: Sequence[Any]) -> FakeTensorMode:
    """Returns the mode that symbolic shapes belong to, or a new one if there are none."""
    for leaf in pytree.leaves(list(values)):
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode
    return FakeTensorMode()
