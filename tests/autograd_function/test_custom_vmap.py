"""custom_vmap and sequential_vmap, against the functions that they batch."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, FunctionError, RuleError

F64 = torch.float64
X = torch.linspace(-1, 2, 12, dtype=F64).reshape(3, 4)
Y = torch.linspace(0.5, 1, 6, dtype=F64).reshape(3, 2)


def true(params, y, power=3):
    x = params["x"]
    return {"out": torch.sin(x) * y.sum(), "rest": (x**power, x.argsort())}


class Counted:
    """A custom_vmap of `true`, and the arguments of its rule's calls."""

    def __init__(self):
        self.calls = []
        self.function = tl.custom_vmap(true)
        self.function.def_vmap(self.rule)

    def rule(self, size, in_dims, params, y, power):
        self.calls.append((size, in_dims))
        x_dim, y_dim = in_dims[0]["x"], in_dims[1]
        x = params["x"]
        totals = y.sum() if y_dim is None else y.flatten(1).sum(1)
        if y_dim == 0:
            totals = totals.reshape(size, *[1] * (x.dim() - (x_dim == 0)))
        out_dim = None if x_dim is None and y_dim is None else 0
        rest = (x**power, x.argsort())
        return {"out": torch.sin(x) * totals, "rest": rest}, {"out": out_dim, "rest": x_dim}


def pair(function):
    return lambda x, y: function({"x": x}, y)


def number(function):
    def total(x, y):
        result = function({"x": x}, y)
        return result["out"].sin().sum() + result["rest"][0].square().sum()

    return total


def gradients(function, x, y):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(tl.vmap(number(function))(x, y).sum(), x, create_graph=True)
    return first, *torch.autograd.grad(first.sin().sum(), x)


# A nest, and how often it calls the rule.
NESTS = {
    "no vmap": (lambda f: pair(f), 0),
    "vmap": (lambda f: tl.vmap(pair(f)), 1),
    "vmap of x": (lambda f: tl.vmap(pair(f), (0, None)), 1),
    "vmap of y": (lambda f: tl.vmap(pair(f), (None, 0)), 1),
    "vmap of columns": (lambda f: tl.vmap(pair(f), (1, None)), 1),
    "grad": (lambda f: tl.grad(number(f), (0, 1)), 0),
    "grad(vmap)": (lambda f: tl.grad(lambda x, y: tl.vmap(number(f))(x, y).sum(), (0, 1)), 1),
    "vmap(grad)": (lambda f: tl.vmap(tl.grad(number(f), (0, 1))), 2),
    "vmap(grad) of a shared x": (lambda f: tl.vmap(tl.grad(number(f), (0, 1)), (None, 0)), 2),
    "vmap(hessian)": (lambda f: tl.vmap(tl.hessian(number(f), (0, 1)), (0, None)), 4),
    "vmap(jacrev(jacrev))": (lambda f: tl.vmap(tl.jacrev(tl.jacrev(number(f)))), 4),
    "vmap(jacfwd)": (lambda f: tl.vmap(tl.jacfwd(number(f))), 2),
    "jvp(vmap)": (lambda f: lambda x, y: tl.jvp(tl.vmap(number(f)), (x, y), (x, y)), 1),
    "vmap(vmap)": (lambda f: tl.vmap(tl.vmap(pair(f), (0, None)), (None, 0)), 1),
    "vmap(vmap) of both": (
        lambda f: lambda x, y: tl.vmap(tl.vmap(pair(f)))(x.view(3, 2, 2), y.view(3, 2, 1)),
        1,
    ),
    "jet(vmap)": (
        lambda f: lambda x, y: tl.jet(lambda x: tl.vmap(number(f))(x, y), (x,), ((x, x),)),
        1,
    ),
    "vmap(jet)": (
        lambda f: tl.vmap(lambda x, y: tl.jet(lambda x: number(f)(x, y), (x,), ((x, x),))),
        0,
    ),
    "functionalize": (lambda f: tl.functionalize(tl.vmap(tl.grad(number(f)))), 2),
    "torch.func": (lambda f: torch.func.vmap(torch.func.grad(number(f))), 2),
    "compile": (lambda f: tl.compile(tl.vmap(tl.grad(number(f), (0, 1))), backend="replay"), 2),
    "plain autograd": (lambda f: lambda x, y: gradients(f, x, y), 1),
}


@pytest.mark.parametrize("nest", NESTS)
def test_rule_is_used_and_results_are_those_of_the_function(nest):
    transform, calls = NESTS[nest]
    counted = Counted()
    got, right = transform(counted.function)(X, Y), transform(true)(X, Y)
    torch.testing.assert_close(got, right)
    assert len(counted.calls) == calls


@pytest.mark.parametrize("nest", NESTS)
def test_sequential_vmap_gives_the_results_of_the_function(nest):
    transform, _ = NESTS[nest]
    torch.testing.assert_close(transform(tl.sequential_vmap(true))(X, Y), transform(true)(X, Y))


def test_rule_gets_the_size_and_a_dimension_for_each_tensor():
    counted = Counted()
    tl.vmap(pair(counted.function), (1, None))(X, Y)
    assert counted.calls == [(4, ({"x": 0}, None, None))]


def test_derivative_is_that_of_the_rule():
    function = tl.custom_vmap(torch.sin)
    function.def_vmap(lambda size, dims, x: (10 * x, 0))
    assert torch.equal(tl.vmap(tl.grad(function))(torch.ones(3)), torch.full((3,), 10.0))
    assert torch.equal(tl.grad(function)(torch.tensor(0.0)), torch.tensor(1.0))


def test_a_sequential_function_sees_one_sample_at_a_time():
    shapes = []

    def step(x):
        shapes.append(x.shape)
        return x if x.sum() > 1 else 2 * x  # a batched tensor can't decide this

    got = tl.vmap(tl.sequential_vmap(step))(X)
    assert torch.equal(got, torch.stack([step(x) for x in X]))
    assert shapes == [(4,)] * 6


def test_a_batch_of_nothing():
    assert tl.vmap(tl.sequential_vmap(torch.sin))(torch.ones(0, 3)).shape == (0, 3)


def test_an_argument_that_is_returned_has_the_rules_derivative():
    function = tl.custom_vmap(lambda x: x)
    function.def_vmap(lambda size, dims, x: (x, 0))
    assert torch.equal(tl.vmap(tl.grad(lambda x: function(x).sum()))(X), torch.ones_like(X))


def test_it_keeps_its_functions_name_and_takes_keywords():
    function = tl.sequential_vmap(true)
    assert function.__name__ == "true"
    got = tl.vmap(lambda x: function({"x": x}, y=Y, power=2)["rest"][0])(X)
    assert torch.equal(got, X**2)


def rule_of(result):
    function = tl.custom_vmap(torch.sin)
    function.def_vmap(lambda size, dims, x: result)
    return lambda: tl.vmap(function)(X)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tl.custom_vmap(3), CallError, "fun must be a function"),
        (lambda: tl.custom_vmap(torch.sin)(X), RuleError, r"sin has no rule. .* @sin\.def_vmap"),
        (
            rule_of(X),
            FunctionError,
            r"the rule of sin must return \(output, out_dims\), got Tensor",
        ),
        (
            rule_of((X, (0, 0))),
            FunctionError,
            r"the rule of sin returned out_dims that don't match",
        ),
        (rule_of((X, 1)), FunctionError, r"shape \(3, 4\) with out_dim 1: .* the batch, 3\."),
        (rule_of((X, 2)), FunctionError, r"shape \(3, 4\) with out_dim 2"),
    ],
)
def test_mistakes_are_refused(call, error, words):
    with pytest.raises(error, match=rf"^torchlayers: custom_vmap: .*{words}"):
        call()
    assert tl.current_stack() == ()


def test_an_error_of_the_rule_is_its_own():
    function = tl.custom_vmap(torch.sin)
    function.def_vmap(lambda size, dims, x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tl.vmap(tl.grad(function))(torch.ones(3))
    assert tl.current_stack() == ()
