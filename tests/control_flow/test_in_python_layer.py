"""Control flow captured inside layers written in Python; compared with the same called eagerly."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.layers import Bounds, Names
from tests.control_flow.rolled_programs import PROGRAMS, XS, W, X, backwards, batched, scans, total
from torchlayers.errors import DataDependentError


def jet(f):
    return lambda x: tl.jet(f, (x,), ([x.cos(), None, x],))[1]


def laplacian(f):
    """Of the squares: that of a linear function is zero, without a loop."""
    return tl.laplacian(lambda x: f(x).square().sum())


def summed(f):
    return lambda x: sum(y.sum() for y in tl.tree.leaves(f(x)))


NESTS = {
    "jet": jet,
    "laplacian": laplacian,
    "hessian_diagonal": lambda f: tl.hessian_diagonal(total(f)),
    "grad(laplacian)": lambda f: tl.grad(laplacian(f)),
    "vmap(laplacian)": lambda f: batched(laplacian(f)),
    "jvp(jet)": lambda f: lambda x: tl.jvp(jet(f), (x,), (x.sin(),))[1],
    "jet(grad)": lambda f: jet(tl.grad(total(f))),
    "laplacian(vmap)": lambda f: laplacian(batched(f)),
    "jet(laplacian)": lambda f: jet(laplacian(f)),
    "grad(jet(grad))": lambda f: tl.grad(summed(jet(tl.grad(total(f))))),
}
SOME = ("jet", "laplacian", "grad(laplacian)")
CASES = [(f, nest) for f in PROGRAMS for nest in NESTS if f is backwards or nest in SOME]


def operators(graph, name):
    """How many calls of a control flow operator a graph has."""
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return sum(str(target) == name for target in calls)


def check(f, *args, others=()):
    """Compares a function with the captured one, for these arguments and others; returns it."""
    compiled = tl.compile(f, backend="replay")
    for each in (args, *others):
        torch.testing.assert_close(compiled(*each), f(*each))
    return tl.make_graph(f)(*args)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("f", "nest"), CASES)
def test_scan_stays_a_scan(f, nest):
    assert scans(check(NESTS[nest](f), X, others=[(-X,)])) > 0


@pytest.mark.parametrize("nest", SOME)
def test_a_long_loop_is_as_many_operators_as_a_short_one(nest):
    def nodes(length):
        f = NESTS[nest](lambda x: tl.scan(lambda c, _: (c.sin() * x, c), x, None, length)[1].sum(0))
        return len(tl.make_graph(f)(X).graph.nodes)

    assert nodes(1000) == nodes(20)


def recurrence(x):
    return tl.scan(lambda c, y: ((W @ c * y).tanh() + x, c), x, XS)[1].prod(0).sum()


def test_laplacian_equals_finite_differences():
    step = 1e-4
    found = tl.compile(tl.laplacian(recurrence), backend="replay")(X)
    shifts = step * torch.eye(3, dtype=X.dtype)
    values = [recurrence(X + e) - 2 * recurrence(X) + recurrence(X - e) for e in shifts]
    torch.testing.assert_close(found, sum(values) / step**2, rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
def test_gradient_of_laplacian_equals_finite_differences():
    compiled = tl.compile(tl.laplacian(recurrence), backend="replay")
    assert torch.autograd.gradcheck(compiled, X.clone().requires_grad_())


@pytest.mark.full  # compiles for ten seconds
def test_inductor_compiles_the_scan():
    f = tl.grad(tl.laplacian(recurrence))
    torch.testing.assert_close(tl.compile(f, wait=True)(X), f(X))


@pytest.mark.sweep
def test_a_constant_carry_becomes_a_jet():
    def f(x):
        start = torch.ones_like(x), torch.zeros_like(x)
        (a, b), ys = tl.scan(lambda c, y: ((c[1] + y, c[0] * x), c), start, XS)
        return a * b + ys[0].sum(0) * ys[1].sum(0)

    for nest in SOME:
        assert scans(check(NESTS[nest](f), X)) > 0


@pytest.mark.sweep
def test_weights_of_a_laplacian_are_operands():
    weights = W @ W.t()

    def f(weights):
        return tl.laplacian(recurrence, weights=weights)(X)

    assert scans(check(f, weights)) == 1
    assert scans(check(batched(f), weights)) == 1
    assert scans(check(tl.grad(f), weights)) > 0


BRANCHES_AND_LOOPS = {
    "cond": lambda x: tl.cond(x.sum() > 0, torch.sin, lambda x: x.cos() * W[0], x),
    "cond of a constant": lambda x: tl.cond(x.sum() > 0, lambda: x.exp(), lambda: W[0]) * x,
    "while_loop": lambda x: tl.while_loop(lambda c: c.sum() < 5, lambda c: c * 1.5 + x**2, x.exp()),
    "while_loop of a constant": lambda x: tl.while_loop(
        lambda c: c[0].sum() < 9, lambda c: (c[0] * 1.5, c[1] * x.sin()), (W[0].abs(), W[0])
    )[1],
}


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("nest", [*SOME, "jvp(jet)", "jet(grad)", "jet(laplacian)"])
@pytest.mark.parametrize("name", BRANCHES_AND_LOOPS)
def test_branches_and_unknown_trips_stay_operators(name, nest):
    graph = check(NESTS[nest](BRANCHES_AND_LOOPS[name]), X, others=[(-X,), (X / 9,)])
    assert operators(graph, name.split()[0]) > 0


@pytest.mark.sweep
def test_while_loop_in_a_scan():
    def f(x):
        def step(c, y):
            return tl.while_loop(lambda c: c.sum() < y, lambda c: c * 1.5 + x * x + 0.1, c).sin(), c

        return tl.scan(step, x, torch.linspace(0, 3, 9, dtype=x.dtype))[1].prod(0)

    for nest in ("jet", "laplacian"):
        assert scans(check(NESTS[nest](f), X)) == 1


def test_map_of_values_whose_jacobian_is_a_diagonal():
    f = tl.laplacian(lambda x: tl.map(lambda y: (y * x).sin(), XS[:, 0]).prod(0).sum())
    assert scans(check(f, X)) == 1


LOOPS = {
    "carry": lambda x: tl.scan(lambda c, y: (c * y + x, None), x, XS)[0],
    "constant carry": lambda x: tl.scan(lambda c, y: (c * y + x, None), W[0], XS)[0],
    "ys": lambda x: tl.scan(lambda c, y: (c * y, c + x), W[0], XS)[1],
    "xs": lambda x: tl.scan(lambda c, y: (c * y, c + y), W[0], XS * x, reverse=True)[1],
}


@pytest.mark.parametrize("name", LOOPS)
def test_layer_of_the_users(name):
    f = Bounds()(LOOPS[name])
    assert scans(check(f, X, X.abs())) == 1
    assert scans(check(lambda x: tl.vmap(f)(x, x.abs()), torch.stack([X, -X]))) == 1
    assert scans(check(tl.grad(lambda b: f(X, b)[1].sum()), X.abs())) > 0


def test_layer_entered_by_with_whose_tensors_the_body_makes():
    def f(x):
        with Bounds() as layer:
            start = layer.tensor(x, 2 * x.abs())
            last = layer.apply(
                lambda c: tl.scan(lambda c, y: (c * layer.tensor(x, x.abs()), None), c, XS)[0],
                start,
            )
            return last.value, last.parts

    check(f, X)


@pytest.mark.parametrize("nest", ["jet", "grad(laplacian)"])
def test_layer_in_the_body_of_what_the_body_captures(nest):
    def f(x):
        def step(c, y):
            return c * y + tl.jet(lambda z: (z * x).sin(), (x,), ([c],))[1][0], None

        return tl.scan(step, x, XS)[0]

    assert scans(check(NESTS[nest](f), X)) > 0


def test_scan_is_unrolled_if_the_parts_hold_other_data_in_a_later_step():
    def rotated(a, b):
        return tl.scan(lambda c, _: ((c[1], c[0] * 2), None), (a, b), None, 9)[0][0]

    def f(a, b):
        return Names()(rotated)(a=a, b=b)

    assert tl.compile(f, backend="replay")(X, -X)[1] == f(X, -X)[1] == ["b"]


def test_while_loop_is_in_parts_if_the_layers_tensors_hold_other_data_in_a_later_trip():
    def inside(a, b):
        return tl.while_loop(lambda c: c.sum() < 5, lambda c: c * 2 + b, a)

    def f(a, b):
        return Names()(inside)(a=a, b=b)

    compiled = tl.compile(f, backend="replay")
    for scale in (1, 3, 100):  # the loop ends after fewer trips, and before the first
        (result, names), expected = compiled(scale * X, X.abs()), f(scale * X, X.abs())
        torch.testing.assert_close(result, expected[0])
        assert names == expected[1]
    with pytest.raises(DataDependentError, match=r"layer written in Python \(names\) does not"):
        tl.make_graph(f)(X, X.abs())
