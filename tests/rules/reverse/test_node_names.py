"""Our nodes have the names of torch's: tools look them up, and anomaly mode prints them."""

import collections
import functools
import pathlib
import re

import pytest
import torch
import torch.func
import torchgen
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.reverse.samples import reaching
from tests.support.calls import run
from tests.support.rule_tables import COTANGENTS
from tests.support.traced_steps import traced_steps

X = torch.tensor([1.0, 2.0, 4.0])

quietly = pytest.mark.filterwarnings("ignore")


def nodes_of(results):
    """All nodes of the graph that computed these tensors."""
    seen = {}
    ahead = [y.grad_fn for y in results if y.grad_fn is not None]
    while ahead:
        node = ahead.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            ahead += [next_node for next_node, _ in node.next_functions if next_node is not None]
    return list(seen.values())


def names_of(tf, f, primals):
    """The names of all nodes in the graph of f's results."""
    names = []

    def recorded(*xs):
        results = [y for y in pytree.tree_leaves(f(*xs)) if isinstance(y, torch.Tensor)]
        names.extend((node.name(), type(node).__name__) for node in nodes_of(results))
        return [y for y in results if y.is_floating_point() or y.is_complex()]

    run(lambda tf: tf.vjp(recorded, *primals), tf)
    assert all(name.endswith(shown) for name, shown in names if shown != "CppFunction")
    return [name for name, _ in names]


def made_of_others(rule):
    return torch._C._dispatch_has_kernel_for_dispatch_key(rule, "CompositeImplicitAutograd")


def camel(name):
    """Converts to camel case as torch's code generator does."""
    parts = name.split("_")
    joined = "".join(part.title() for part in parts) + "Backward"
    return joined.replace("ForwardBackward", "Backward")


@functools.cache
def names_in_derivatives_yaml():
    """The node of each operator that torch has a formula for."""
    path = pathlib.Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
    counts = collections.Counter()
    names = {}
    for entry in path.read_text().split("\n- name: ")[1:]:
        name = entry[: entry.index("(")]
        formulas = re.findall(r"^ +([a-z][\w, ]*): (.+)$", entry, re.MULTILINE)
        is_recorded = any(
            formula != "non_differentiable"
            and not re.match(r"result|output_differentiability|dispatch|Autograd", arguments)
            for arguments, formula in formulas
        )
        if is_recorded:
            prefix = camel(name.split(".")[0])
            names[f"aten::{name}"] = f"{prefix}{counts[prefix]}"
            counts[prefix] += 1
    return names


def name_of(rule):
    """The name of the rule's node: the last node in the graph of its call."""
    f, primals = reaching()[rule]
    found = names_of(tl, f, primals)
    expected = names_in_derivatives_yaml().get(rule)
    return expected if expected in found else found


@pytest.mark.sweep
@quietly
@pytest.mark.parametrize(
    "rule", [rule for rule in COTANGENTS.operators if rule in names_in_derivatives_yaml()]
)
def test_a_rules_node_has_the_name_that_torchs_has(rule):
    assert name_of(rule) == names_in_derivatives_yaml()[rule]


def names_or_none(tf, case):
    """None if the library can't differentiate with respect to all inputs."""
    try:
        return sorted(names_of(tf, case.func, case.inputs))
    except RuntimeError:
        return None


# Only torch.func decomposes the first, for which plain autograd and torchlayers have one node, and
# only torchlayers the second.
TAKEN_APART = {"nn.functional.binary_cross_entropy_with_logits", "nn.functional.rrelu"}


@quietly
@pytest.mark.parametrize("op", ops(torch.float64), ids=full_name)
def test_names_are_torch_funcs(op, full):
    """Compares all nodes, except where torch decomposes an operator for which we have a rule."""
    for case in cases(op, torch.float64, 3 if full else 1):
        with traced_steps() as events:
            ours = names_or_none(tl, case)
        if any(event.step == "rule" and made_of_others(event.op) for event in events):
            continue
        theirs = names_or_none(torch.func, case)
        if ours is not None and theirs is not None:
            assert (ours == theirs) != (full_name(op) in TAKEN_APART)


def test_a_node_is_a_node_to_python():
    """Its class has its name, as torch's have, and nodes of one operator share one class."""
    seen = []

    def f(x):
        y = x.sqrt()
        seen.extend([y.grad_fn, (y * 2).grad_fn, x.sqrt().grad_fn, y.sum(0).grad_fn])
        return y.sum()

    for tf in (tl, torch.func):
        seen.clear()
        tf.grad(f)(X)
        root, product, other_root, total = seen
        assert [type(node).__name__ for node in seen] == [node.name() for node in seen]
        assert [root.name(), product.name(), total.name()] == [
            "SqrtBackward0",
            "MulBackward0",
            "SumBackward1",
        ]
        assert type(root) is type(other_root) is not type(product)
        assert isinstance(root, torch.autograd.graph.Node)
        assert repr(root).startswith("<SqrtBackward0 object at ")
        assert product.next_functions[0][0] is root


def test_a_node_is_found_by_its_name_and_hooked():
    scaled = []

    def f(x):
        y = x.sqrt().sin().sum()
        node = y.grad_fn
        while node.name() != "SqrtBackward0":
            node = node.next_functions[0][0]
        node.register_hook(lambda inputs, outputs: scaled.append(node.name()))
        return y

    torch.testing.assert_close(tl.grad(f)(X), torch.func.grad(f)(X))
    assert scaled == ["SqrtBackward0", "SqrtBackward0"]


def test_a_tensor_prints_its_node():
    printed = []
    tl.grad(lambda x: printed.append(torch._tensor_str._str_intern(x.sqrt())) or x.sum())(X)
    torch.func.grad(lambda x: printed.append(torch._tensor_str._str_intern(x.sqrt())) or x.sum())(X)
    assert printed[0] == printed[1]
