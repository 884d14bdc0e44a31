"""Long loops in recordings: one operator each, held against the loop written out."""

import pytest
import torch
from torch._higher_order_ops.scan import scan_op

import torchlayers as tl
from torchlayers.compiled import inductor

STEPS = 11  # more than are written out
D = torch.float64
torch.manual_seed(0)
W = torch.randn(3, 3, dtype=D) / 3
XS = torch.randn(STEPS, 3, dtype=D)
X = torch.tensor([0.3, -0.5, 0.8], dtype=D)


def recurrent(x):
    def step(state, slope):
        state = (W @ state + slope * x).tanh()
        return state, state.sin()

    last, ys = tl.scan(step, x, XS)
    return last + ys.prod(0)


def backwards(x):
    """A carry of several kinds, ys that are partly None, from the last slice to the first."""

    def step(carry, slices):
        state, count = carry
        new = state * slices["a"].cos() + count
        return (new, count + 1), (new * slices["b"], None)

    start = x, torch.zeros((), dtype=torch.int64)
    slices = {"a": XS * x, "b": torch.arange(STEPS)}
    (last, count), (ys, _) = tl.scan(step, start, slices, reverse=True)
    return last * count + (ys * XS).sum(0)


def without_slices(x):
    return tl.scan(lambda c, _: ((c * x).sin() + W @ c, c[0]), x, None, STEPS)[1].sum() * x


def not_all_matters(x):
    """A carry that isn't differentiated, and one that is thrown away."""

    def step(carry, y):
        a, b = carry
        return (a.detach() * y, b + a), b * 2

    return tl.scan(step, (x, x * 2), XS)[1].sum(0)


def of_trips(x):
    return tl.fori_loop(0, STEPS, lambda i, c: (c * x + i / 3).sin() + XS[i] * x, x)


def subscripted(x):
    def body(i, c):
        return c + W[i % 3] * x[i % 3 - 1] + XS[1:, 0][..., i - 2] * x

    return tl.fori_loop(2, STEPS + 1, body, x)


def each(x):
    return tl.map(lambda row: (row * x).sin() @ W, XS).prod(0)


def in_each_other(x):
    def outer(c, a):
        inner, ys = tl.scan(lambda d, b: ((d * b + a).sin(), d), c, XS)
        return inner + x, ys.sum()

    last, ys = tl.scan(outer, x, XS)
    return last * ys.sum()


def some_steps_at_a_time(x):
    last, ys = tl.scan(lambda c, a: ((c * a + x).sin(), c), x, XS.repeat(9, 1), checkpoint=True)
    return last + ys.sum(0)


def some_backwards(x):
    xs = XS.repeat(9, 1)
    last, ys = tl.scan(lambda c, a: ((c * a + x).sin(), c), x, xs[:-1], checkpoint=9, reverse=True)
    return last + (ys * xs[1:]).sum(0)


PROGRAMS = [
    recurrent,
    backwards,
    without_slices,
    not_all_matters,
    of_trips,
    subscripted,
    each,
    in_each_other,
    some_steps_at_a_time,
    some_backwards,
]


def total(f):
    return lambda x: f(x).sum()


def pushed(f):
    return lambda x: tl.jvp(f, (x,), (x.cos(),))[1]


def batched(f):
    return lambda x: tl.vmap(f)(torch.stack([x, x / 2]))


NESTS = {
    "plain": lambda f: f,
    "grad": lambda f: tl.grad(total(f)),
    "jvp": pushed,
    "vmap": batched,
    "grad(grad)": lambda f: tl.grad(total(tl.grad(total(f)))),
    "grad(jvp)": lambda f: tl.grad(total(pushed(f))),
    "grad(vmap)": lambda f: tl.grad(total(batched(f))),
    "jvp(grad)": lambda f: pushed(tl.grad(total(f))),
    "jvp(jvp)": lambda f: pushed(pushed(f)),
    "jvp(vmap)": lambda f: pushed(batched(f)),
    "vmap(grad)": lambda f: batched(tl.grad(total(f))),
    "vmap(jvp)": lambda f: batched(pushed(f)),
    "vmap(vmap)": lambda f: batched(batched(f)),
    "vmap(hessian)": lambda f: batched(tl.hessian(total(f))),
}


def scans(graph):
    return sum(node.target is scan_op for node in graph.graph.nodes)


# In every nest; the others where both modes meet.
EVERYWHERE = (backwards, of_trips)
SOME = ("plain", "vmap(grad)", "grad(jvp)")
CASES = [(f, nest) for f in PROGRAMS for nest in NESTS if f in EVERYWHERE or nest in SOME]


@pytest.mark.parametrize(("f", "nest"), CASES)
def test_values_are_those_of_the_loop_written_out(f, nest):
    nested = NESTS[nest](f)
    graph = tl.make_graph(nested)(X)
    assert scans(graph) > 0
    compiled = tl.compile(nested, backend="replay")
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), nested(x))


@pytest.mark.parametrize("f", [f for f in PROGRAMS if f is not not_all_matters])
def test_gradients_are_slopes(f):
    compiled = tl.compile(f, backend="replay")
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(compiled, x)


def test_a_long_loop_is_as_many_operators_as_a_short_one():
    def nodes(length):
        f = tl.grad(lambda x: tl.scan(lambda c, _: (c.sin(), c), x, None, length)[1].sum())
        return len(tl.make_graph(f)(X[0]).graph.nodes)

    assert nodes(1000) == nodes(20)


def test_a_short_loop_is_written_out():
    graph = tl.make_graph(lambda x: tl.scan(lambda c, y: (c * y, c), x, XS[:8])[0])(X)
    assert scans(graph) == 0


def test_the_reverse_pass_reads_what_the_forward_pass_computed():
    graph = tl.make_graph(tl.grad(total(recurrent)))(X)
    forward, backward = (body for _, body in graph.named_children())
    tanhs = [
        sum(node.target is torch.ops.aten.tanh.default for node in body.graph.nodes)
        for body in (forward, backward)
    ]
    assert tanhs == [1, 0]


def test_two_loops_share_no_steps_where_writes_remain():
    """Those to an expanded argument do, and with them all others."""

    def twice(xs, expanded):
        def step(c, y):
            return c + y.sin().exp(), c * y.sin().exp()

        first = tl.scan(step, X, xs)
        xs[1].add_(1)
        expanded[0].add_(1)
        return first, tl.scan(step, X, xs)

    compiled = tl.compile(twice, backend="replay", check=False)
    actual, expected = (f(XS.clone(), X[None].clone().expand(2, 3)) for f in (compiled, twice))
    torch.testing.assert_close(actual, expected)


def counted(x):
    count = iter(range(100))
    return tl.scan(lambda c, y: (c * y + next(count), c), x, XS)[0]


def of_some_parameters(x):
    left = iter([x * (i + 1) for i in range(STEPS)])
    return tl.scan(lambda c, y: (c * y + next(left), c), x, XS)[0]


def of_a_number(x):
    return tl.fori_loop(0, STEPS, lambda i, c: c * x + (XS[i] if i % 2 else i), x)


def of_a_table(x):
    table = {i: 1 / (i + 1) for i in range(5)}
    return tl.fori_loop(0, STEPS, lambda i, c: (c + table.get(i, 2.0)).sin(), x)


def carrying_a_number(x):
    return tl.scan(lambda c, y: ((c[0] * y + c[1], c[1] + 1), None), (x, 0), XS)[0][0]


def writing_outside(x):
    total = torch.zeros_like(x)

    def step(c, y):
        total.add_(c)
        return c * y, None

    last, _ = tl.scan(step, x, XS)
    return last + total


def drawing(x):
    return tl.scan(lambda c, y: (c * y * torch.rand(3, dtype=D), c), x, XS)[1].sum(0)


@pytest.mark.parametrize("f", [counted, of_some_parameters])
def test_a_body_that_does_something_else_each_time_is_refused(f):
    with pytest.raises(tl.errors.TransformError, match="scan: a recording has one body for all 11"):
        tl.make_graph(tl.grad(total(f)))(X)
    assert tl.current_stack() == ()


WRITTEN_OUT = [
    of_a_number,
    of_a_table,
    carrying_a_number,
    writing_outside,
    drawing,
]


@pytest.mark.parametrize("f", WRITTEN_OUT)
def test_a_body_that_differs_from_step_to_step_is_written_out(f):
    nested = tl.grad(total(f))
    assert scans(tl.make_graph(nested)(X)) == 0
    compiled = tl.compile(nested, backend="replay")
    torch.manual_seed(0)
    expected = nested(X)
    for _ in range(2):
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(X), expected)


def test_a_body_draws_anew_in_each_step():
    compiled = tl.compile(drawing, backend="replay")
    assert scans(tl.make_graph(drawing)(X)) == 1
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = drawing(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(X), expected)


@pytest.mark.parametrize("f", [lambda c: c.float(), lambda c: c[:2]], ids=["dtype", "shape"])
def test_a_carry_that_changes_is_refused(f):
    with pytest.raises(tl.errors.StructureError, match="must keep the shape and dtype"):
        tl.compile(lambda x: tl.scan(lambda c, y: (f(c), y), x, XS)[0], backend="replay")(X)
    assert tl.current_stack() == ()


def test_autograd_differentiates_it_from_outside():
    w = W.clone().requires_grad_()
    f = tl.compile(
        lambda x: tl.scan(lambda c, y: ((w @ c + y).sin(), c), x, XS)[1].sum(), backend="replay"
    )
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: f(x), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: f(x), (x, w))


def test_inductors_own_function_runs_the_steps_too(monkeypatch):
    monkeypatch.setattr(inductor, "program_of", lambda *_: None)
    nested = tl.vmap(tl.grad(total(recurrent)))
    compiled = tl.compile(nested)
    xs = torch.stack([X, -X])
    for _ in range(2):
        torch.testing.assert_close(compiled(xs), nested(xs))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_taps_see_each_step():
    def f(x):
        return tl.scan(lambda c, y: (tl.tap(c * y, "state"), None), x, XS)[0]

    states = tl.intermediates(f)
    found = tl.compile(states, backend="replay")(X)
    torch.testing.assert_close(found["state"], states(X)["state"])


def test_inductor_runs_the_steps_in_a_program():
    nested = tl.vmap(tl.grad(total(recurrent)))
    compiled = tl.compile(nested)
    xs = torch.stack([X, -X])
    torch.testing.assert_close(compiled(xs), nested(xs))
    torch.testing.assert_close(compiled(-xs), nested(-xs))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_costs_count_each_step():
    def operators(length):
        f = tl.compile(lambda x: tl.scan(lambda c, _: (c.sin().cos(), None), x, None, length)[0])
        return f.lower(X).operators

    assert operators(30) - operators(20) == 20


def test_torchs_scan_is_rolled_too():
    from torch._higher_order_ops.scan import scan

    def f(x):
        return scan(lambda c, y: ((c * y).sin(), c * 2), x, XS)[1].sum()

    assert scans(tl.make_graph(tl.grad(f))(X)) == 2
