"""custom_jvp and custom_vjp, against the functions that they stand for."""

import types

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, FunctionError, MissingDerivativeError


def true(x, y):
    return {"out": torch.sin(x) * y.sum(), "rest": (x**3,)}


@tl.custom_jvp
def by_jvp(x, y):
    return true(x.detach(), y.detach())


@by_jvp.defjvp
def _by_jvp_rule(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    tangent = {
        "out": torch.cos(x) * dx * y.sum() + torch.sin(x) * dy.sum(),
        "rest": (3 * x**2 * dx,),
    }
    return by_jvp(x, y), tangent


@tl.custom_jvp
def by_jvps(x, y):
    return true(x.detach(), y.detach())


by_jvps.defjvps(
    lambda t, out, x, y: {"out": torch.cos(x) * t * y.sum(), "rest": (3 * x**2 * t,)},
    lambda t, out, x, y: {"out": torch.sin(x) * t.sum(), "rest": (torch.zeros_like(x),)},
)


@tl.custom_vjp
def by_vjp(x, y):
    return true(x.detach(), y.detach())


def _forward(x, y):
    # An intermediate value, an argument, a number.
    return true(x, y), (torch.cos(x), x, y, 3)


def _backward(res, g):
    cos, x, y, power = res
    dx = g["out"] * cos * y.sum() + power * x**2 * g["rest"][0]
    return dx, (g["out"] * torch.sin(x)).sum().expand(y.shape)


by_vjp.defvjp(_forward, _backward)

X = torch.tensor([0.3, -1.2], dtype=torch.float64)
Y = torch.tensor([0.7, 0.1, 2.0], dtype=torch.float64)


def a_sum(f):
    def of(x, y):
        result = f(x, y)
        return (result["out"] * torch.tensor([1.0, -2.0], dtype=x.dtype)).sum() + (
            result["rest"][0] ** 2
        ).sum()

    return of


def a_jvp(f):
    return lambda x, y: tl.jvp(f, (x, y), (torch.cos(X), torch.sin(Y)))[1]


def batched(f):
    scales = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64)
    return lambda x, y: tl.vmap(lambda s: f(s * x, y))(scales).sum(0)


def a_grad(f, argnum=0):
    return tl.grad(f, argnum)


REVERSE = {
    "value": a_sum,
    "grads": lambda f: tl.grad(a_sum(f), (0, 1)),
    "hessian": lambda f: tl.jacrev(tl.jacrev(a_sum(f), (0, 1)), (0, 1)),
    "third": lambda f: tl.jacrev(tl.jacrev(a_grad(a_sum(f), 1), 0), 0),
    "vmap_grad": lambda f: batched(a_grad(a_sum(f))),
    "grad_vmap": lambda f: tl.grad(lambda x, y: batched(a_sum(f))(x, y), (0, 1)),
    "grad_vmap_grad": lambda f: tl.grad(lambda x, y: batched(a_grad(a_sum(f)))(x, y).sum(), (0, 1)),
    "functionalize": lambda f: tl.functionalize(tl.grad(a_sum(f), (0, 1))),
    "compile": lambda f: tl.compile(tl.grad(a_sum(f), (0, 1))),
}
OVER_REVERSE = {
    "jvp_grad": lambda f: a_jvp(a_grad(a_sum(f))),
    "hessian": lambda f: tl.hessian(a_sum(f), (0, 1)),
    "jvp_jvp_grad": lambda f: a_jvp(a_jvp(a_grad(a_sum(f)))),
    "torch.func.hessian": lambda f: torch.func.hessian(a_sum(f), (0, 1)),
    "vmap_torch.func.hessian": lambda f: batched(torch.func.hessian(lambda x, y: a_sum(f)(x, y))),
}
FORWARD = {
    "jvp": lambda f: a_jvp(a_sum(f)),
    "jvp_jvp": lambda f: a_jvp(a_jvp(a_sum(f))),
    "hessian": lambda f: tl.hessian(a_sum(f), (0, 1)),
    "grad_jvp": lambda f: tl.grad(a_jvp(a_sum(f)), (0, 1)),
    "vmap_jvp": lambda f: batched(a_jvp(a_sum(f))),
    "jvp_vmap": lambda f: a_jvp(batched(a_sum(f))),
}


@pytest.mark.sweep
@pytest.mark.parametrize("nest", REVERSE)
@pytest.mark.parametrize("f", [by_jvp, by_jvps, by_vjp], ids=["jvp", "jvps", "vjp"])
def test_reverse_mode(f, nest):
    torch.testing.assert_close(REVERSE[nest](f)(X, Y), REVERSE[nest](true)(X, Y))


@pytest.mark.parametrize("nest", FORWARD)
@pytest.mark.parametrize("f", [by_jvp, by_jvps], ids=["jvp", "jvps"])
def test_forward_mode(f, nest):
    torch.testing.assert_close(FORWARD[nest](f)(X, Y), FORWARD[nest](true)(X, Y))


@pytest.mark.parametrize("nest", OVER_REVERSE)
def test_forward_over_reverse_mode_of_custom_vjp(nest):
    """Only reverse mode needs the rules; a jvp around it differentiates them."""
    torch.testing.assert_close(OVER_REVERSE[nest](by_vjp)(X, Y), OVER_REVERSE[nest](true)(X, Y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", [tl.grad, tl.jacrev, tl.hessian])
@pytest.mark.parametrize("f", [by_jvp, by_vjp], ids=["jvp", "vjp"])
def test_torch_compile_around_the_transform(f, transform):
    compiled = torch.compile(transform(a_sum(f), (0, 1)), backend="eager")
    torch.testing.assert_close(compiled(X, Y), transform(a_sum(true), (0, 1))(X, Y))


@pytest.mark.parametrize("f", [by_jvp, by_vjp], ids=["jvp", "vjp"])
def test_plain_autograd_to_the_second_order(f):
    def seconds(f):
        x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
        first = torch.autograd.grad(a_sum(f)(x, y), (x, y), create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), (x, y))

    torch.testing.assert_close(seconds(f), seconds(true))


def test_the_rule_replaces_the_derivative():
    @tl.custom_vjp
    def straight_through(x):
        return torch.round(x)

    straight_through.defvjp(lambda x: (torch.round(x), None), lambda res, g: (g,))
    x = torch.tensor([0.3, 1.7])
    torch.testing.assert_close(tl.grad(lambda x: straight_through(x).sum())(x), torch.ones(2))


def test_fwd_runs_once_for_a_first_derivative():
    calls = []

    @tl.custom_vjp
    def f(x):
        calls.append("fun")
        return x**2

    def fwd(x):
        calls.append("fwd")
        return x**2, 2 * x

    f.defvjp(fwd, lambda res, g: (res * g,))
    tl.grad(f)(torch.tensor(2.0))
    assert calls == ["fwd"]
    f(torch.tensor(2.0))
    assert calls == ["fwd", "fun"]


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_arguments_that_are_not_differentiated(kind):
    if kind == "jvp":

        @tl.custom_jvp(nondiff_argnums=(0, -1))
        def scaled(f, x, by):
            return by * f(x)

        @scaled.defjvp
        def _(f, by, primals, tangents):
            return scaled(f, *primals, by), 10 * by * tangents[0]
    else:

        @tl.custom_vjp(nondiff_argnums=(0, -1))
        def scaled(f, x, by):
            return by * f(x)

        scaled.defvjp(lambda f, x, by: (by * f(x), None), lambda f, by, res, g: (10 * by * g,))

    x = torch.tensor([1.0, 2.0])
    gradients = tl.vmap(tl.grad(lambda x: scaled(torch.sin, x, by=3)))(x)
    torch.testing.assert_close(gradients, torch.full((2,), 30.0))


def test_outputs_and_arguments_without_derivatives():
    @tl.custom_jvp
    def largest(x, k, name="max"):
        values, index = x.topk(1)
        return values[0], index[0] + k, name

    @largest.defjvp
    def _(primals, tangents):
        x, k, name = primals
        out = largest(x, k, name)
        return out, (tangents[0][out[1] - k], tangents[1], None)

    x = torch.tensor([1.0, 5.0, 2.0])
    gradient, (index, name) = tl.grad(
        lambda x: (lambda out: (out[0], out[1:]))(largest(x, torch.tensor(7))), has_aux=True
    )(x)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1.0, 0.0]))
    assert (index.item(), name) == (8, "max")


def _misused(name):
    @tl.custom_jvp
    def f(x, y):
        return x * y

    @tl.custom_vjp
    def g(x, y):
        return x * y

    x = torch.tensor(2.0)
    if name == "no rule":
        f(x, x)
    elif name == "no rules":
        g(x, x)
    elif name == "not a pair":
        f.defjvp(lambda primals, tangents: tangents[0])
        tl.jvp(f, (x, x), (x, x))
    elif name == "another shape":
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0].expand(3)))
        tl.jvp(f, (x, x), (x, x))
    elif name == "too few cotangents":
        g.defvjp(lambda x, y: (x * y, None), lambda res, g: (g,))
        tl.grad(g)(x, x)
    elif name == "a cotangent of another shape":
        g.defvjp(lambda x, y: (x * y, None), lambda res, g: (g.expand(3), g))
        tl.grad(g)(x, x)
    elif name == "forward mode":
        g.defvjp(lambda x, y: (x * y, None), lambda res, g: (g, g))
        tl.jvp(g, (x, x), (x, x))
    elif name == "no such argument":
        f(x, z=x)
    elif name == "too few jvps":
        f.defjvps(lambda t, out, x, y: t * y)
        tl.jvp(f, (x, x), (x, x))
    elif name == "argnums by position":
        tl.custom_jvp((0,))


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("no rule", MissingDerivativeError, "has no rule"),
        ("no rules", MissingDerivativeError, "has no rules"),
        ("not a pair", FunctionError, "must return"),
        ("another shape", FunctionError, "returned a tangent of shape"),
        ("too few cotangents", FunctionError, "a tuple of 2"),
        ("a cotangent of another shape", FunctionError, "cotangent of shape"),
        ("forward mode", MissingDerivativeError, "jvp"),
        ("no such argument", CallError, "does not take these arguments"),
        ("too few jvps", FunctionError, "1 rules for 2 arguments"),
        ("argnums by position", CallError, "nondiff_argnums by its name"),
    ],
)
def test_misuse(name, error, text):
    with pytest.raises(error, match=text):
        _misused(name)
    assert tl.current_stack() == ()


def _vjp_by(box):
    @tl.custom_vjp
    def f(x):
        return (box.a * x).sin()

    f.defvjp(lambda x: ((box.a * x).sin(), (box.a * x).cos()), lambda cos, g: (box.a * cos * g,))
    return f


def _jvp_by(box):
    @tl.custom_jvp
    def f(x):
        return (box.a * x).sin()

    f.defjvp(lambda primals, t: (f(*primals), box.a * (box.a * primals[0]).cos() * t[0]))
    return f


@pytest.mark.parametrize("make", [_vjp_by, _jvp_by])
def test_rules_see_attributes_as_they_were_at_the_call(make):
    box = types.SimpleNamespace(a=3.0)
    f = make(box)

    def call(x):
        box.a = 3.0
        y = f(x)
        box.a = 7.0
        return y

    x = torch.tensor(0.4, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(call)(x), 3 * (3 * x).cos())
    torch.testing.assert_close(tl.grad(tl.grad(call))(x), -9 * (3 * x).sin())
