"""Error messages for TorchScript graphs that can't be differentiated, and for misuse."""

from typing import List  # noqa: UP035 (TorchScript's name)

import pytest
import torch
from torch import Tensor, nn

from torchlayers.graph import GraphError, differentiate

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def without_a_formula(x):
    y = x * 2
    return torch.linalg.det(y)


def loop_on_data(x):
    i = 0
    while bool(x.sum() < 10.0):
        x = x * 2
        i += 1
    return x


@torch.jit.ignore
def python(x: Tensor) -> Tensor:
    return x * 2


def calls_python(x):
    return python(x) * 3


def written_argument(x, y):
    x[0] = y.sum()
    return x.sin()


def index_known_at_run_time(x, i: int):
    parts = x.unbind(0)
    return parts[i] * 2


def list_goes_on(x):
    return torch.cat(x.split(2), 1)


def einsum_of_a_diagonal(x):
    return torch.einsum("ii->i", x)


def list_without_a_formula(x, y):
    a, b = torch.meshgrid([x, y])
    return a * b


def written_capture(x, counter):
    with torch.no_grad():
        kept = counter.detach()
    y = x * kept
    kept.add_(1)
    return y


def written_past_autograd(x):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y


def written_with_a_view_kept(x, y):
    z = x.clone()
    first = z[0]
    z[:1] = y.sum()
    return first * z


def appended_at_run_time(x, n: int):
    parts = [x]
    for _ in range(n):
        parts.append(x * 2)
    return torch.cat(parts)


def list_in_a_branch(x, flag: bool):
    a = x.chunk(2)
    if flag:
        return a[0] * 2
    return x * 2


# The message must contain the node, the source line, and the reason.
REFUSED = {
    without_a_formula: (
        "aten::linalg_det",
        "return torch.linalg.det(y)",
        "no formula for its gradient is known",
    ),
    loop_on_data: ("prim::Loop", "while bool(x.sum() < 10.0):", "only known at run time"),
    calls_python: ("prim::PythonOp", "return python(x) * 3", "Python code inside"),
    written_argument: ("aten::copy_", "x[0] = y.sum()", "writes to"),
    index_known_at_run_time: ("aten::__getitem__", "return parts[i] * 2", "only known at run time"),
    list_goes_on: ("aten::split", "return torch.cat(x.split(2), 1)", "is passed on as a whole"),
    einsum_of_a_diagonal: ("aten::einsum", 'return torch.einsum("ii->i", x)', "no formula"),
    list_without_a_formula: ("aten::meshgrid", "a, b = torch.meshgrid([x, y])", "list"),
    written_past_autograd: ("aten::mul_", "y.mul_(3)", "writes to"),
    written_with_a_view_kept: ("aten::copy_", "z[:1] = y.sum()", "writes to"),
    appended_at_run_time: ("aten::append", "parts.append(x * 2)", "writes to"),
    list_in_a_branch: ("prim::If", "if flag:", "a list that was created before it"),
    written_capture: ("aten::add_", "kept.add_(1)", "the backward graph reads"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_error_names_node_line_and_reason(function):
    node, line, reason = REFUSED[function]
    with pytest.raises(GraphError) as caught:
        differentiate(torch.jit.script(function))
    message = str(caught.value)
    assert message.startswith(f"torchlayers: can't differentiate {node}: ")
    assert f"In test_script_errors.py:{line_number(function, line)}, `{line}`" in message
    assert reason in message


def line_number(function, line):
    code = function.__code__
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    return 1 + next(
        i for i, text in enumerate(lines) if i >= code.co_firstlineno - 1 and text.strip() == line
    )


def inner(x):
    return torch.linalg.det(x)


def outer(x):
    return inner(x * 2)


def test_error_for_an_inlined_node_names_the_calling_line():
    with pytest.raises(GraphError, match=r"`return torch.linalg.det\(x\)`, called in .*`return i"):
        differentiate(torch.jit.script(outer))


def test_a_refused_graph_is_not_changed():
    function = torch.jit.script(without_a_formula)
    before = str(function.graph)
    with pytest.raises(GraphError):
        differentiate(function)
    assert str(function.graph) == before


def test_unsupported_node_without_requested_gradient_is_accepted():
    def unused_and_detached(x):
        torch.linalg.det(x)
        with torch.no_grad():
            scale = torch.linalg.det(x)
        return x * scale

    x = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    (actual,) = torch.autograd.grad(
        differentiate(torch.jit.script(unused_and_detached))(x).sum(), x
    )
    torch.testing.assert_close(actual, torch.linalg.det(x).detach().expand(2, 2))


def product(x, y):
    return x * y


def of_a_list(xs: List[Tensor]):  # noqa: UP006
    return torch.cat(xs)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def call(*args):
    return differentiate(torch.jit.script(product))(*args)


X = torch.ones(2)

MISUSES = {
    "too few arguments": (lambda: call(X), "missing a required argument: 'y'"),
    "too many arguments": (lambda: call(X, X, X), "too many positional arguments"),
    "complex": (lambda: call(X.to(torch.complex64), X), "argument x is complex"),
    "argnums out of range": (
        lambda: differentiate(torch.jit.script(product), argnums=2),
        "argnums names input 2, and the graph has 2",
    ),
    "argnums of an integer": (
        lambda: differentiate(torch.jit.script(product), (X, torch.ones(2).long()), argnums=1),
        "input 1 is not a floating-point tensor",
    ),
    "a list without examples": (
        lambda: differentiate(torch.jit.script(of_a_list)),
        "is a list of tensors of unknown length. Pass example_inputs.",
    ),
    "a list of another length": (
        lambda: differentiate(torch.jit.script(of_a_list), ([X, X],))([X]),
        "for a list of 2 as argument xs, got 1",
    ),
    "a module that changes itself": (
        lambda: differentiate(torch.jit.script(Counting())),
        "prim::SetAttr: it uses the module for more than reading its attributes",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse(misuse):
    action, said = MISUSES[misuse]
    with pytest.raises(GraphError) as caught:
        action()
    assert str(caught.value).startswith("torchlayers: ")
    assert said in str(caught.value)


def test_too_few_cotangents():
    gradient = differentiate(torch.jit.script(product))
    _, captures = gradient.forward(X, X)
    with pytest.raises(GraphError, match="one cotangent for each differentiable output"):
        gradient.backward(captures)
