"""TorchScript graphs: values and gradients of the corpus equal eager autograd's."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.script_nodes import chain
from benchmarks.timing import least_seconds
from tests.graph.script_corpus import FUNCTIONS, MODULES, Case
from torchlayers import _C
from torchlayers.graph import differentiate
from torchlayers.graph import torchscript as script_module

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

CORPUS = {**FUNCTIONS, **MODULES}

# Errors of torch's own pass for graphs that it can't differentiate.
pass_refuses = (RuntimeError, IndexError)


class Example:
    """One case: the original, its script, and the leaves to differentiate by."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.original = case.make()
        self.args = pytree.tree_map(_leaf, case.args())
        self.script = torch.jit.script(self.original)
        parameters = self.original.parameters() if isinstance(self.original, nn.Module) else ()
        tensors = [x for x in pytree.tree_leaves(self.args) if isinstance(x, Tensor)]
        self.leaves = [x for x in (*tensors, *parameters) if x.requires_grad]

    def differentiated(self) -> Any:
        return differentiate(self.script, self.args)

    def run(self, function: Any) -> Any:
        torch.manual_seed(1)
        return function(*self.args)

    def gradients(self, outputs: Any, cotangents: list[Tensor]) -> list[Tensor]:
        found = torch.autograd.grad(
            differentiable(outputs), self.leaves, cotangents, allow_unused=True
        )
        return [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(self.leaves, found, strict=True)
        ]


def _leaf(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.requires_grad_() if floating else value


def differentiable(outputs: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]


@pytest.fixture(params=CORPUS)
def example(request):
    return Example(CORPUS[request.param])


def test_the_corpus_is_large_enough():
    assert len(CORPUS) >= 60


@pytest.mark.sweep
def test_call_equals_the_original(example):
    expected = example.run(example.original)
    actual = example.run(example.differentiated())
    torch.testing.assert_close(pytree.tree_leaves(actual), pytree.tree_leaves(expected))
    cotangents = [torch.randn_like(x) for x in differentiable(expected)]
    torch.testing.assert_close(
        example.gradients(actual, cotangents), example.gradients(expected, cotangents)
    )


def test_forward_and_backward_by_hand(example):
    gradient = example.differentiated()
    expected = example.run(example.original)
    outputs, captures = example.run(gradient.forward)
    assert all(x.grad_fn is None for x in differentiable(outputs))
    torch.testing.assert_close(pytree.tree_leaves(outputs), pytree.tree_leaves(expected))

    flat = pytree.tree_leaves(expected)
    cotangents = {i: torch.randn_like(flat[i]) for i in gradient.differentiable_outputs}
    given = gradient.backward(captures, *cotangents.values())
    found = dict(zip(gradient.output_vjps, given, strict=True))
    wanted = torch.autograd.grad(
        [flat[i] for i in cotangents if flat[i].requires_grad],
        example.leaves,
        [c for i, c in cotangents.items() if flat[i].requires_grad],
        allow_unused=True,
    )
    inputs = gradient._flatten(*example.args)
    by_leaf = {id(inputs[i]): g for i, g in found.items() if g is not None}
    for leaf, gradient_of_leaf in zip(example.leaves, wanted, strict=True):
        zeros = torch.zeros_like(leaf)
        torch.testing.assert_close(
            by_leaf.get(id(leaf), zeros),
            zeros if gradient_of_leaf is None else gradient_of_leaf,
        )


def test_the_input_graph_is_not_changed(example):
    before = str(example.script.graph)
    example.differentiated()
    assert str(example.script.graph) == before


def test_torch_captures_no_fewer_tensors(example):
    """Both passes get the same graph, prepared so that torch's pass accepts it."""
    prepared, _ = script_module._prepare(example.script, example.args, None)
    try:
        theirs = torch._C._jit_differentiate(prepared.graph)
    except pass_refuses as refusal:
        assert "differentiat" in str(refusal)
        return
    ours = _C.differentiate_graph(prepared.graph, False)
    assert captured_tensors(ours) <= captured_tensors(theirs)


def captured_tensors(gradient: Any) -> int:
    """Returns the number of captured tensors or containers of tensors, by their types in f."""
    inputs, outputs = list(gradient.f.inputs()), list(gradient.f.outputs())
    values = [inputs[i] for i in gradient.df_input_captured_inputs]
    values += [outputs[i] for i in gradient.df_input_captured_outputs]
    return sum("Tensor" in str(value.type()) for value in values)


def test_a_graph_of_2000_nodes_takes_less_than_a_second():
    assert least_seconds(partial(differentiate, chain(2000)), 3) < 1


def operators_of(nodes: Any) -> Iterator[str]:
    for node in nodes:
        yield node.schema().split("(")[0]
        for block in node.blocks():
            yield from operators_of(block.nodes())


def test_every_rule_is_in_the_corpus():
    """A rule that no case uses is untested."""
    used: set[str] = set()
    for case in CORPUS.values():
        example = Example(case)
        method = example.script
        graph = (method.forward if isinstance(method, nn.Module) else method).graph.copy()
        torch._C._jit_pass_inline(graph)
        used.update(operators_of(graph.nodes()))
        prepared, _ = script_module._prepare(example.script, example.args, None)
        used.update(operators_of(prepared.graph.nodes()))
    assert set(_C.operators_with_rules()) - used == set()


@pytest.mark.parametrize(
    "choose",
    [
        torch.maximum,
        torch.minimum,
        lambda x, y: x.clamp_min(0.5) * y.clamp_max(0.5),
        lambda x, y: x.masked_fill(x > y, 2.0),
    ],
    ids=["maximum", "minimum", "clamps", "masked_fill"],
)
def test_unselected_values_have_no_gradient_even_for_infinite_cotangents(choose):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0])
    x, y = special.repeat(6).requires_grad_(), special.repeat_interleave(6).requires_grad_()
    gradient = differentiate(torch.jit.trace(choose, (x, y)))
    for cotangent in (1.0, float("inf")):
        expected = choose(x, y)
        cotangents = torch.full_like(expected, cotangent)
        torch.testing.assert_close(
            torch.autograd.grad(gradient(x, y), (x, y), cotangents, allow_unused=True),
            torch.autograd.grad(expected, (x, y), cotangents, allow_unused=True),
            equal_nan=True,
        )


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5),
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
    ],
    ids=["native_layer_norm", "native_batch_norm"],
)
def test_the_statistics_of_a_norm_have_no_vjp(norm):
    x = torch.randn(3, 4).requires_grad_()
    traced = torch.jit.trace(norm, x)
    assert [result.requires_grad for result in norm(x)] == [True, False, False]
    assert differentiate(traced, (x,)).input_vjps == (0,)
