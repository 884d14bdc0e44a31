"""Loops captured with symbolic sizes: one operator, whatever sizes their bodies read."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.rolled_programs import NESTS, STEPS, XS, D, W, recurrent, scans, total
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.inductor import scan_op

SIZES = (12, 13, 14, 20, 9, 3)  # alone, then with a symbolic size (checked once)


def batch(size):
    return torch.linspace(-1, 2, 3 * size, dtype=D).reshape(size, 3)


def scans_in(f):
    """Returns the number of scans in f's graph with symbolic sizes."""
    return scans(record(f, (batch(12),), symbolic=[{0}]).graph)


def of_a_size_that_no_operand_has(x):
    size = x.shape[0]

    def step(state, slope):
        state = (state * torch.ones(size, 3, dtype=D).mean(0) + slope / size).tanh()
        return state, state * size

    last, ys = tl.scan(step, x.mean(0), XS)
    return last + ys.sum(0)


def along_it(x):
    last, ys = tl.scan(lambda c, row: ((c * row + W[0]).tanh(), c * row), x.mean(0), x)
    return last + ys.sum(0)


def along_it_from_the_end(x):
    last, ys = tl.scan(lambda c, row: ((c * row).tanh() + W[0], c), W[1], x, reverse=True)
    return last + (ys * x).sum(0)


def of_so_many_steps(x):
    return tl.scan(lambda c, _: ((c * x).sin().sum(0) + c, None), W[0], None, x.shape[0])[0]


def each(x):
    return tl.map(lambda row: (row * row.sum()).sin(), x)


def counted(x):
    return tl.fori_loop(0, x.shape[0], lambda i, c: (c * x[i]).tanh() + i / 3, W[0])


def in_each_other(x):
    def outer(c, row):
        inner, ys = tl.scan(lambda d, b: ((d * b + row).sin(), d * x.shape[0]), c, XS)
        return inner, ys.sum()

    last, ys = tl.scan(outer, W[0], x)
    return last * ys.sum()


def some_steps_at_a_time(x):
    return tl.scan(lambda c, a: ((c * a + x).sin(), None), x, XS.repeat(9, 1), checkpoint=9)[0]


def with_a_branch(x):
    def step(c, a):
        c = tl.cond(a.sum() > 0, lambda c: c * x.shape[0] + a, lambda c: c.sin() - a, c)
        return (c + x).tanh(), None

    return tl.scan(step, x, XS)[0]


PROGRAMS = [
    recurrent,
    of_a_size_that_no_operand_has,
    along_it,
    along_it_from_the_end,
    of_so_many_steps,
    each,
    counted,
    in_each_other,
    some_steps_at_a_time,
    with_a_branch,
]


# One program runs in all nests, the others in two, and in full in three more.
EVERYWHERE = (along_it,)
SOME = ("grad", "grad(jvp)")
MORE = ("plain", "jvp", "vmap(grad)")
CASES = [(f, nest) for f in PROGRAMS for nest in NESTS if f in EVERYWHERE or nest in SOME]
CASES += [
    pytest.param(f, nest, marks=pytest.mark.full)
    for f in PROGRAMS
    for nest in MORE
    if f not in EVERYWHERE
    and (f, nest) != (counted, "vmap(grad)")  # torch specializes sizes in a batched index_add
]


def one_recording(nested):
    compiled = tl.compile(nested, dynamic=True, backend="replay")
    for size in SIZES:
        torch.testing.assert_close(compiled(batch(size)), nested(batch(size)))
    _, many = compiled.report().signatures
    assert (many.arguments, many.calls) == ("f64[*, 3]", len(SIZES) - 1)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("f", "nest"), CASES)
def test_one_capture_runs_scans_of_all_sizes(f, nest):
    nested = NESTS[nest](f)
    assert scans_in(nested) > 0
    one_recording(nested)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(
    "nested",
    [
        tl.vmap(recurrent),
        tl.vmap(tl.grad(total(recurrent))),
        tl.vmap(tl.jacrev(recurrent)),
        tl.vmap(tl.hessian(total(recurrent))),
        tl.vmap(NESTS["jvp"](recurrent)),
        tl.grad(total(tl.vmap(recurrent))),
        NESTS["jvp"](tl.vmap(tl.grad(total(recurrent)))),
        tl.vmap(lambda x: tl.vmap(tl.grad(total(recurrent)))(torch.stack([x, -x]))),
    ],
)
def test_batch_size_may_be_symbolic(nested):
    assert scans_in(nested) > 0
    one_recording(nested)


@pytest.mark.full
@pytest.mark.parametrize("f", [recurrent, along_it, of_a_size_that_no_operand_has])
def test_inductor_compiles_the_steps_once(f):
    nested = tl.grad(total(f))
    compiled = tl.compile(nested, dynamic=True)
    for size in SIZES:
        torch.testing.assert_close(compiled(batch(size)), nested(batch(size)))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor", "inductor"]


@pytest.mark.full
def test_steps_with_symbolic_sizes_do_not_run_in_python(monkeypatch):
    def refuse(self, tensors):
        raise AssertionError("inductor's function is called")

    monkeypatch.setattr(scan_op.WithScanBodies, "__call__", refuse)
    nested = tl.vmap(tl.grad(total(recurrent)))
    compiled = tl.compile(nested, dynamic=True)
    for size in SIZES:
        torch.testing.assert_close(compiled(batch(size)), nested(batch(size)))
    alone, many = compiled.report().signatures
    assert (alone.how, many.how, many.calls) == ("inductor", "inductor", len(SIZES) - 1)


def in_parts_of_about_the_root(x):
    return tl.scan(lambda c, a: ((c * a + W[0]).sin(), c), x.mean(0), x, checkpoint=True)[1].sum(0)


def in_parts_from_the_end(x):
    step = lambda c, a: ((c * a + W[0]).sin(), c)  # noqa: E731
    return tl.scan(step, x.mean(0), x, checkpoint=9, reverse=True)[1].sum(0)


def some_at_a_time(x):
    return tl.map(lambda row: (row * x.mean(0)).sin(), x, batch_size=4).sum(0)


@pytest.mark.full  # compiles for ten seconds
@pytest.mark.parametrize("nest", ["plain", "grad"])
@pytest.mark.parametrize("f", [in_parts_of_about_the_root, in_parts_from_the_end, some_at_a_time])
def test_partitioned_loops_with_symbolic_length(f, nest):
    """A capture holds for no, one, or several remaining steps, or for few steps."""
    nested = NESTS[nest](f)
    compiled = tl.compile(nested, dynamic=True, backend="replay")
    for size in (102, 111, 120, 129, 138, 174, 3, 1, 0):
        x = batch(size)
        torch.testing.assert_close(compiled(x), nested(x), equal_nan=True)
    symbolic = [entry for entry in compiled.report().signatures if "*" in entry.arguments]
    assert sum(entry.calls for entry in symbolic) >= 5
    assert len(symbolic) <= 4


@pytest.mark.sweep
def test_sizes_0_and_1_and_short_loops_are_captured_separately():
    nested = tl.grad(total(along_it))
    compiled = tl.compile(nested, dynamic=True, backend="replay")
    for size in (8, 9, 10, 2, 1, 0, 7, 1):
        torch.testing.assert_close(compiled(batch(size)), nested(batch(size)), equal_nan=True)


def test_graph_size_does_not_depend_on_loop_length():
    assert STEPS > 8

    def nodes(length):
        f = tl.grad(lambda x: tl.scan(lambda c, _: (c.sin(), c), x, None, length)[1].sum())
        return len(record(f, (batch(12),), symbolic=[{0}]).graph.graph.nodes)

    assert nodes(1000) == nodes(20)


def test_forward_mode_of_many_primals_with_one_tangent():
    def f(x):
        return tl.vmap(lambda a: tl.jvp(lambda a: a.t() @ a, (a,), (W,))[1])(x)

    xs = lambda x: x[:, None] * x[..., None]  # noqa: E731
    one_recording(lambda x: f(xs(x)))
