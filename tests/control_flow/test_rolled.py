"""Long loops are captured as one operator each; compared with the unrolled loop."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.rolled_programs import (
    NESTS,
    PROGRAMS,
    STEPS,
    XS,
    W,
    X,
    backwards,
    not_all_matters,
    of_trips,
    recurrent,
    scans,
    total,
)
from torchlayers.compiler.inductor import compile as inductor

# Tested in every nest; the others in nests of both modes.
EVERYWHERE = (backwards, of_trips)
SOME = ("plain", "vmap(grad)", "grad(jvp)")
CASES = [(f, nest) for f in PROGRAMS for nest in NESTS if f in EVERYWHERE or nest in SOME]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("f", "nest"), CASES)
def test_values_equal_the_unrolled_loop(f, nest):
    nested = NESTS[nest](f)
    graph = tl.make_graph(nested)(X)
    assert scans(graph) > 0
    compiled = tl.compile(nested, backend="replay")
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), nested(x))


@pytest.mark.sweep
@pytest.mark.parametrize("f", [f for f in PROGRAMS if f is not not_all_matters])
def test_gradients_equal_finite_differences(f):
    compiled = tl.compile(f, backend="replay")
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(compiled, x)


def test_a_long_loop_is_as_many_operators_as_a_short_one():
    def nodes(length):
        f = tl.grad(lambda x: tl.scan(lambda c, _: (c.sin(), c), x, None, length)[1].sum())
        return len(tl.make_graph(f)(X[0]).graph.nodes)

    assert nodes(1000) == nodes(20)


def test_short_loop_is_unrolled():
    graph = tl.make_graph(lambda x: tl.scan(lambda c, y: (c * y, c), x, XS[:8])[0])(X)
    assert scans(graph) == 0


def test_reverse_pass_reads_saved_values():
    graph = tl.make_graph(tl.grad(total(recurrent)))(X)
    forward, backward = (body for _, body in graph.named_children())
    tanhs = [
        sum(node.target is torch.ops.aten.tanh.default for node in body.graph.nodes)
        for body in (forward, backward)
    ]
    assert tanhs == [1, 0]


def test_loops_share_no_steps_across_writes():
    """Writes to an expanded argument remain, and then so do all others."""

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


@pytest.mark.parametrize("f", [counted, of_some_parameters])
def test_body_that_consumes_an_iterator_is_rejected(f):
    with pytest.raises(
        tl.errors.TransformError, match="scan: a captured loop has one body for all 11"
    ):
        tl.make_graph(tl.grad(total(f)))(X)
    assert tl.current_stack() == ()


WRITTEN_OUT = [
    of_a_number,
    of_a_table,
    carrying_a_number,
    writing_outside,
]


@pytest.mark.sweep
@pytest.mark.parametrize("f", WRITTEN_OUT)
def test_body_that_differs_between_steps_is_unrolled(f):
    nested = tl.grad(total(f))
    assert scans(tl.make_graph(nested)(X)) == 0
    compiled = tl.compile(nested, backend="replay")
    torch.manual_seed(0)
    expected = nested(X)
    for _ in range(2):
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(X), expected)


def normalized(norm, x):
    """A scan whose norm updates its statistics in each step."""
    return tl.scan(lambda c, y: (norm(c * y + x).tanh(), None), W, XS)[0]


def test_batch_norm_statistics_are_updated_in_each_step():
    norms = [torch.nn.BatchNorm1d(3).double() for _ in range(2)]
    compiled = tl.compile(lambda x: normalized(norms[0], x), backend="replay")
    for _ in range(3):
        torch.testing.assert_close(compiled(X), normalized(norms[1], X))
    for found, expected in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        torch.testing.assert_close(found, expected)
    assert norms[0].num_batches_tracked == 3 * STEPS


@pytest.mark.sweep
@pytest.mark.parametrize("nest", ["plain", "grad"])
def test_batch_norm_statistics_may_be_carried(nest):
    """A reverse pass differentiates by every carry, but torch can't differentiate by statistics."""
    apply, params, buffers = tl.functional(torch.nn.BatchNorm1d(3).double())

    def f(x):
        def step(carry, y):
            c, buffers = carry
            c, buffers = apply(params, buffers, c * y + x)
            return (c.tanh(), buffers), None

        (last, statistics), _ = tl.scan(step, (W, buffers), XS)
        return last.sum(0) * statistics["running_mean"]

    nested = NESTS[nest](f)
    assert (scans(tl.make_graph(nested)(X)) > 0) == (nest == "plain")
    torch.testing.assert_close(tl.compile(nested, backend="replay")(X), nested(X))


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


@pytest.mark.sweep
def test_inductors_own_function_runs_the_steps_too(monkeypatch):
    monkeypatch.setattr(inductor, "build", lambda *_: None)
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


@pytest.mark.sweep
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


def test_torchs_scan_is_captured_as_one_operator():
    from torch._higher_order_ops.scan import scan

    def f(x):
        return scan(lambda c, y: ((c * y).sin(), c * 2), x, XS)[1].sum()

    assert scans(tl.make_graph(tl.grad(f))(X)) == 2
