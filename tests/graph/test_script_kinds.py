"""Inputs of differentiate_script: traces, methods, raw, profiled and specialised graphs; and
the choice of inputs to differentiate by."""

import itertools
from typing import List, NamedTuple  # noqa: UP035 (TorchScript's names)

import pytest
import torch
from torch import Tensor, nn

from torchlayers import _C
from torchlayers.graph import GraphError, differentiate
from torchlayers.graph.script import differentiate_script, steps

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def function(x, y):
    return (x * y).tanh() + x


def leaves():
    torch.manual_seed(0)
    return tuple(torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))


def gradients(f, args):
    return torch.autograd.grad(f(*args).sum(), args)


def agrees(differentiated, original=function):
    args = leaves()
    torch.testing.assert_close(gradients(differentiated, args), gradients(original, args))


PROFILED = """
graph(%x : Tensor, %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %px : Tensor = prim::profile[profiled_type=Double(3, requires_grad=1), seen_none=0](%x)
  %py : Tensor = prim::profile[profiled_type=Double(3, requires_grad={requires_grad})](%y)
  %product : Tensor = aten::mul(%px, %py)
  %pp : Tensor = prim::profile[profiled_type=Double(3, requires_grad=1), seen_none=0](%product)
  %tanh : Tensor = aten::tanh(%pp)
  %sum : Tensor = aten::add(%tanh, %px, %one)
  return (%sum)
"""


def test_a_trace():
    agrees(differentiate(torch.jit.trace(function, leaves())))


def test_trace_does_not_fix_shapes_or_requires_grad():
    """The types in a trace are those of the one traced call."""
    traced = torch.jit.trace(function, (torch.ones(2, 3), torch.ones(3)))
    agrees(differentiate(traced))


def test_a_raw_graph():
    agrees(differentiate(torch.jit.script(function).graph))


def traced_graph(*requires_grad):
    args = [torch.ones(3, dtype=torch.float64, requires_grad=r) for r in requires_grad]
    return torch.jit.trace(function, args).graph


def test_the_graph_of_a_trace_of_plain_tensors():
    agrees(differentiate(traced_graph(False, False)))
    assert differentiate(traced_graph(False, False), argnums=1).output_vjps == (1,)


def test_traced_graph_determines_requires_grad_if_anything_requires_it():
    assert differentiate(traced_graph(True, False)).output_vjps == (0,)
    with pytest.raises(GraphError, match=r"input 1 .* that it requires no grad"):
        differentiate(traced_graph(True, False), argnums=1)


def test_integer_inputs_known_only_at_the_call():
    def scaled_by_integer(x, y, i):
        return x * y.to(i) + x * y.type_as(i)

    i = torch.ones(3, dtype=torch.int64)
    differentiated = differentiate(torch.jit.script(scaled_by_integer))
    agrees(lambda x, y: differentiated(x, y, i) + y, lambda x, y: scaled_by_integer(x, y, i) + y)


def test_a_traced_module_and_its_parameters():
    layer = nn.Linear(3, 2, dtype=torch.float64)
    x, _ = leaves()
    gradient = differentiate(torch.jit.trace(layer, x))
    wanted = (x, layer.weight, layer.bias)
    torch.testing.assert_close(
        torch.autograd.grad(gradient(x).sum(), wanted), torch.autograd.grad(layer(x).sum(), wanted)
    )


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    @torch.jit.export
    def scaled(self, x, y):
        return self.scale * x * y.exp()


def test_a_method_of_a_module():
    module = Methods()
    agrees(differentiate(torch.jit.script(module).scaled), module.scaled)


def test_an_argument_called_self():
    def scaled(self, x):
        return self * x.tanh()

    differentiated = differentiate(torch.jit.script(scaled))
    agrees(differentiated, scaled)
    self, x = leaves()
    torch.testing.assert_close(differentiated(x=x, self=self), scaled(self, x))


def test_profile_nodes_pass_gradients():
    agrees(differentiate(torch._C.parse_ir(PROFILED.format(requires_grad=1))))


def test_profiled_types_say_what_requires_grad():
    x, y = leaves()
    gradient = differentiate(torch._C.parse_ir(PROFILED.format(requires_grad=0)))
    assert gradient.output_vjps == (0,)
    torch.testing.assert_close(
        torch.autograd.grad(gradient(x, y).sum(), x), torch.autograd.grad(function(x, y).sum(), x)
    )


def specialised(requires_grad=(True, True)):
    graph = torch.jit.script(function).graph.copy()
    shapes = torch.randn(3, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    for value, shape, required in zip(graph.inputs(), shapes, requires_grad, strict=True):
        value.inferTypeFrom(shape.requires_grad_(required))
    torch._C._jit_pass_propagate_shapes_on_graph(graph)
    return graph, shapes


def test_known_shapes_are_constants_of_the_backward_graph():
    graph, args = specialised()
    gradient = differentiate(graph)
    assert "_size_if_not_equal" not in str(gradient.f)
    assert "size" not in str(gradient.f)
    torch.testing.assert_close(gradients(gradient, args), gradients(function, args))


def test_types_that_require_no_grad_are_not_differentiated_by():
    graph, (x, y) = specialised(requires_grad=(False, True))
    gradient = differentiate(graph)
    assert gradient.output_vjps == (1,)
    torch.testing.assert_close(
        torch.autograd.grad(gradient(x, y).sum(), y), torch.autograd.grad(function(x, y).sum(), y)
    )


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), -1, ()])
def test_argnums(argnums):
    gradient = differentiate_script(torch.jit.script(function), argnums=argnums)
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    assert gradient.output_vjps == tuple(sorted(i % 2 for i in chosen))
    args = leaves()
    wanted = [args[i] for i in gradient.output_vjps]
    if wanted:
        torch.testing.assert_close(
            torch.autograd.grad(gradient(*args).sum(), wanted),
            torch.autograd.grad(function(*args).sum(), wanted),
        )


def test_only_what_the_chosen_gradients_need_is_captured():
    def product(x, y):
        return x * y

    scripted = torch.jit.script(product)
    assert differentiate_script(scripted, argnums=0).captured_inputs == (1,)
    assert differentiate_script(scripted, argnums=1).captured_inputs == (0,)


def test_integers_of_examples_are_not_differentiated_by():
    def shifted(x, n):
        return x * n

    example = leaves()[0], torch.tensor(2)
    assert differentiate(torch.jit.script(shifted)).output_vjps == (0, 1)
    assert differentiate(torch.jit.script(shifted), example).output_vjps == (0,)


def test_examples_do_not_fix_shapes():
    x, y = leaves()
    gradient = differentiate(torch.jit.script(function), (x, y))
    larger = torch.stack([x, y]).detach().requires_grad_()
    torch.testing.assert_close(gradients(gradient, (larger, y)), gradients(function, (larger, y)))


def test_defaults_and_keywords():
    def power(x, n: int = 3):
        return x**n

    x, _ = leaves()
    gradient = differentiate(torch.jit.script(power))
    torch.testing.assert_close(gradient(x), x**3)
    torch.testing.assert_close(gradient(n=2, x=x), x**2)


class Pair(NamedTuple):
    first: Tensor
    second: List[Tensor]  # noqa: UP006


def pairs(x, y):
    return Pair(x * y, [x, y.exp()])


def test_a_named_tuple_is_returned_as_one():
    x, y = leaves()
    outputs = differentiate(torch.jit.script(pairs))(x, y)
    torch.testing.assert_close(outputs.first, x * y)
    torch.testing.assert_close(outputs.second, [x, y.exp()])


def test_training_mode_is_that_at_differentiation():
    layer = nn.Dropout(0.5)
    scripted = torch.jit.script(layer)
    training = differentiate(scripted)
    scripted.eval()
    x = torch.ones(100)
    assert (training(x) == 0).any()
    assert (differentiate(scripted)(x) == x).all()


def test_buffers_are_updated_as_the_original_updates_them():
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    original, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    gradient = differentiate(torch.jit.script(other))
    for _ in range(2):
        torch.testing.assert_close(gradient(x), original(x))
    torch.testing.assert_close(dict(other.named_buffers()), dict(original.named_buffers()))


class ByItsMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.add_(2)

    def forward(self, x):
        mean = self.norm.running_mean
        assert mean is not None
        y = x * mean
        return y, self.norm(x)


def test_a_derivative_uses_a_buffer_as_it_was_at_the_call():
    scripted = torch.jit.script(ByItsMean())
    x = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(differentiate(scripted)(x)[0].sum(), x)
    torch.testing.assert_close(gradient, torch.full((4, 3), 2.0))
    torch.testing.assert_close(scripted.norm.running_mean, 1.8 + 0.1 * x.mean(0).detach())


class WithText(ByItsMean):
    def forward(self, x):
        text = "{} and {}".format(1, self.norm.running_mean)  # noqa: UP032 (TorchScript's)
        return x * len(text), self.norm(x)


def test_a_buffer_may_be_written_into_a_string():
    differentiated = differentiate(torch.jit.script(WithText()))
    x = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(differentiated(x)[0].sum(), x)
    assert (gradient > len("1 and ")).all()


def test_two_calls_then_two_backwards():
    """A module's statistics change between a call and its backward."""
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(3)
    gradient = differentiate(torch.jit.script(layer))
    batches = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    losses = [gradient(x).pow(3).sum() for x in batches]
    actual = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, batches, strict=True)]
    losses = [layer(x).pow(3).sum() for x in batches]
    expected = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, batches, strict=True)]
    torch.testing.assert_close(actual, expected)


def test_a_cotangent_may_be_missing():
    def two(x):
        a, b = x.chunk(2)
        return a.sin(), b.cos()

    x = torch.randn(4, dtype=torch.float64)
    gradient = differentiate(torch.jit.script(two))
    _, captures = gradient.forward(x)
    (found,) = gradient.backward(captures, torch.ones(2, dtype=torch.float64), None)
    torch.testing.assert_close(found, torch.cat([x[:2].cos(), torch.zeros(2, dtype=x.dtype)]))


def scaled_softmax(x, y):
    return torch.softmax(x * y, 0)


def projection_of_scaled(x, y):
    return torch.nn.functional.linear(x * 2, y.detach()).mean(0)


def test_the_steps_are_in_order_and_each_changes_a_graph():
    printed = [steps(torch.jit.script(f)) for f in (function, scaled_softmax, projection_of_scaled)]
    names = list(printed[0])
    assert names[0] == "prepared" and names[-1] == "lifted" and len(names) == 6
    for before, after in itertools.pairwise(names):
        assert any(graphs[before] != graphs[after] for graphs in printed), after


def test_rules_are_compiled_once():
    """Graphs with the same operators share compiled formulas, so that the second is cheap."""
    scripted = torch.jit.script(function)
    first, second = (str(_C.differentiate_graph(scripted.graph, False).df) for _ in range(2))
    assert first == second
