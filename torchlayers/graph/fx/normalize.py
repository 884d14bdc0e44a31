"""Step 0 for FX: any graph that can be traced, as a flat, functional graph of ATen operators.

A Program takes the original's arguments flattened, then its parameters, buffers and constants.
A graph that make_fx recorded is taken as it is. Others (symbolic_trace's, torch.export's,
those with in-place operators) are traced anew, on fake tensors.
"""

import inspect
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from torchlayers.core import pytree
from torchlayers.graph.errors import GraphError

aten = torch.ops.aten

# These write to their running statistics, and their schemas don't say so.
_WRITES_UNSAID = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)

# Operators on graphs that stay; others, as those of regions under no_grad, are replaced by what
# is in them.
_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")

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
    expected: list[Any]  # what is known of each of those
    structure: pytree.TreeSpec | None  # of the arguments, where it is known
    result: pytree.TreeSpec  # of the outputs
    state: list[State]
    # What is written to in place, and the output that is its new value: state, and arguments'
    # leaves. These outputs are the last.
    updates: list[tuple[State, int]] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)


def value(node: Any) -> Any:
    """What is known of a node's result: fake tensors, symbolic numbers."""
    return node.meta.get("val") if isinstance(node, Node) else node


def fresh(value: Any, mode: FakeTensorMode, requires_grad: bool = False) -> Any:
    """A fake tensor like this one, which nothing has been done with."""
    if not isinstance(value, Tensor):
        return value
    with mode:
        fake = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    differentiable = fake.is_floating_point() or fake.is_complex()
    return fake.requires_grad_(requires_grad and differentiable)


def writes(node: Node) -> bool:
    """Whether the operator changes one of its arguments."""
    if not isinstance(node.target, OpOverload):
        return False
    return node.target._schema.is_mutable or node.target in _WRITES_UNSAID


def is_view(node: Node) -> bool:
    """Whether the operator only looks at its argument in another way."""
    if not isinstance(node.target, OpOverload):
        return False
    if node.target is aten.reshape.default:
        return True  # stands for view in the graphs made here
    schema = node.target._schema
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def is_plain(module: GraphModule) -> bool:
    """Whether the graph can be taken as it is."""
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


def as_it_is(module: GraphModule) -> Program:
    """The program of a plain graph."""
    graph = fx.Graph()
    mode = mode_of([n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"])
    copied: dict[Node, Any] = {}
    arguments = copy_placeholders(module.graph, graph, copied, ())
    state = lift_attributes(module, graph, copied)
    output = copy_body(module.graph, graph, copied)
    leaves, result = pytree.flatten(plain(output))
    codegen = module.graph._codegen
    if isinstance(codegen, fx.graph._PyTreeCodeGen) and codegen.pytree_info.out_spec is not None:
        result = codegen.pytree_info.out_spec
    graph.output(tuple(leaves))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    signature = inspect.signature(module.forward)
    return Program(
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


def structure_of(module: GraphModule, signature: inspect.Signature) -> pytree.TreeSpec | None:
    """How the arguments are structured, where the graph says it."""
    codegen = module.graph._codegen
    if not isinstance(codegen, fx.graph._PyTreeCodeGen):
        return None
    spec = codegen.pytree_info.in_spec
    given = spec.children()
    if [child.type for child in given] == [tuple, dict]:
        arguments = [*given[0].children(), *given[1].children()]  # as torch.export writes it
        if len(arguments) == len(signature.parameters):
            given = arguments
    return pytree.TreeSpec(tuple, None, given)


def copy_placeholders(
    old: fx.Graph, new: fx.Graph, copied: dict[Node, Any], names: Sequence[str]
) -> int:
    """Copies the inputs, under these names where some are given, and counts them."""
    placeholders = [node for node in old.nodes if node.op == "placeholder"]
    names = names or [str(node.target) for node in placeholders]
    for node, name in zip(placeholders, names, strict=True):
        copied[node] = new.placeholder(re.sub(r"\W", "_", name))
        copied[node].meta = dict(node.meta)
    return len(placeholders)


def lift_attributes(module: GraphModule, new: fx.Graph, copied: dict[Node, Any]) -> list[State]:
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
            placeholder.meta["val"] = fresh(tensor, FakeTensorMode())
            by_tensor[id(tensor)] = placeholder
            state.append(found)
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
    """copy(x, y) is y as x is: it has no derivative, and what it is made of here does."""
    old, source = node.args[:2]
    assert isinstance(old, Node) and isinstance(source, Node)
    found: Node = copied[source]
    like, given = value(old), value(source)
    if (like.dtype, like.device) != (given.dtype, given.device):
        options = {"dtype": like.dtype, "device": like.device}
        converted = given.to(**options)
        found = new.call_function(aten._to_copy.default, (found,), options)
        found.meta = {**node.meta, "val": converted}
    if like.shape != given.shape:
        expanded = value(found).expand(like.shape)
        found = new.call_function(aten.expand.default, (found, list(like.shape)))
        found.meta = {**node.meta, "val": expanded}
    found = new.call_function(aten.clone.default, (found,))
    found.meta = dict(node.meta)
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


def subgraphs_of(module: GraphModule) -> torch.nn.Module:
    """A module of our own, to add to, with the subgraphs that get_attr nodes name."""
    root = torch.nn.Module()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            inside = State(module, str(node.target)).read()
            if isinstance(inside, torch.nn.Module):
                root.add_module(str(node.target), inside)
    return root


def plain(output: Any) -> Any:
    """fx's immutable lists and dicts as Python's."""
    if type(output) is tuple:
        return tuple(plain(item) for item in output)
    if type(output) in (list, immutable_list):
        return [plain(item) for item in output]
    if type(output) in (dict, immutable_dict):
        return {key: plain(item) for key, item in output.items()}
    return output


def mode_of(values: Sequence[Any]) -> FakeTensorMode:
    """The mode that symbolic shapes belong to; a new one where there are none."""
    for leaf in pytree.leaves(list(values)):
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode
    return FakeTensorMode()
