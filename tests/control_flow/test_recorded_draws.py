"""Captured control flow draws the same random numbers as the uncompiled function."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.control_flow.rolled_programs import NESTS, STEPS, XS, D, W, X, scans, total

KEY = tl.random.key(3)


def drawn():
    return torch.rand(3, dtype=D)


def in_scan(x):
    return tl.scan(lambda c, y: (c * y + drawn(), c), W[0], XS)[1].sum(0) * x


def in_scan_from_the_end(x):
    return tl.scan(lambda c, y: (c * y + drawn(), c), x, XS, reverse=True)[1].sum(0) * x


def in_fori_loop(x):
    return tl.fori_loop(0, STEPS, lambda i, c: c * i / 9 + drawn(), W[0]) * x


def in_map(x):
    return tl.map(lambda y: drawn() * y, XS).sum(0) * x


def in_cond(x):
    return tl.cond(XS.sum() > 0, drawn, lambda: drawn() + drawn()) * x + drawn()


def in_switch(x):
    number = XS.sum().long() % 3
    branches = [drawn, lambda: drawn() + drawn(), lambda: drawn() * drawn()]
    return tl.switch(number, branches) * x + drawn()


def in_while_loop(x):
    start = torch.zeros((), dtype=torch.int64), W[0]
    return tl.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] + drawn()), start)[1] * x


def as_uncompiled(f):
    compiled = tl.compile(f, backend="replay")
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = f(X), torch.rand(2)
        torch.manual_seed(seed)
        torch.testing.assert_close((compiled(X), torch.rand(2)), expected)


LOOPS = [in_scan, in_scan_from_the_end, in_fori_loop, in_map]
BRANCHES = [in_cond, in_switch]


@pytest.mark.parametrize("vmap", [tl.vmap, torch.func.vmap], ids=["ours", "torch's"])
@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("f", [*LOOPS, *BRANCHES, in_while_loop])
def test_unbatched_loop_draws_by_the_vmaps_randomness(f, randomness, vmap):
    some = vmap(lambda x: f(torch.ones(3, dtype=D)) + 0 * x, randomness=randomness)
    as_uncompiled(lambda x: some(x.expand(2, 3)))
    torch.manual_seed(0)
    rows = tl.compile(some, backend="replay")(X.expand(2, 3))
    assert torch.equal(rows[0], rows[1]) == (randomness == "same")


@pytest.mark.sweep
@pytest.mark.parametrize("nest", ["plain", "grad"])
@pytest.mark.parametrize("f", [*LOOPS, *BRANCHES])
def test_keyed_layers_draw_by_their_key(f, nest):
    nested = NESTS[nest](f)
    as_uncompiled(tl.seeded(lambda x: nested(x) + drawn(), KEY))
    keyed = tl.vmap(lambda x: nested(x) + drawn(), randomness="keyed", key=KEY)
    as_uncompiled(lambda x: keyed(torch.stack([x, -x])))


def test_seeded_inside_a_captured_branch():
    def f(x):
        scaled = tl.seeded(lambda x: torch.rand(3, dtype=D) * x, KEY)
        return tl.cond(x.sum() > 0, lambda: scaled(x), lambda: x.sin())

    for nested in (f, tl.grad(lambda x: f(x).sum())):
        torch.testing.assert_close(tl.compile(nested, backend="replay")(X), nested(X))


def test_keyed_draws_in_a_captured_while_loop_are_rejected():
    with pytest.raises(
        tl.errors.TransformError, match=r"would have to count the trips.*Draw with keys"
    ):
        tl.compile(tl.seeded(in_while_loop, KEY), backend="replay")(X)
    assert tl.current_stack() == ()
    as_uncompiled(lambda x: in_while_loop(x) + drawn())


def dropping(x):
    return tl.scan(lambda c, y: (F.dropout(c * y, 0.3) + x, c), x, XS)[1].sum(0)


def by_what_is_carried(x):
    def step(c, y):
        return (c * y + torch.bernoulli(c.sigmoid()) + torch.normal(c, 0.5)).tanh(), c

    return tl.scan(step, x, XS, reverse=True)[1].sum(0)


def filling(x):
    def body(i, c):
        noise = torch.empty_like(x).uniform_(-1, 1).mul_(2)
        return (c * x + noise + i / 9).sin()

    return tl.fori_loop(0, STEPS, body, x)


def mapped(x):
    return tl.map(lambda y: torch.rand(3, dtype=D) * y * x.square(), XS).prod(0)


def in_each_other(x):
    def outer(c, a):
        last, ys = tl.scan(lambda d, b: (d * b + drawn() * x, d), c, XS)
        return (last + drawn() * a).tanh(), ys.sum(0)

    return tl.scan(outer, x, XS)[1].sum(0)


def some_steps_at_a_time(x):
    def step(c, a):
        return (c * a + x * torch.rand_like(x)).sin(), c

    return tl.scan(step, x, XS.repeat(9, 1), checkpoint=True)[1].sum(0)


def in_a_vmap_of_its_own(x):
    each = tl.vmap(lambda c, y: c * y + torch.rand((), dtype=D), randomness="different")
    return tl.scan(lambda c, y: (each(c, y).sin(), c), x, XS)[1].sum(0)


def different(f):
    return lambda x: tl.vmap(f, randomness="different")(torch.stack([x, x / 2]))


DIFFERENTIATED = {
    **{nest: NESTS[nest] for nest in ("grad", "jvp", "grad(grad)", "grad(jvp)", "jvp(grad)")},
    "vmap(grad)": lambda f: different(NESTS["grad"](f)),
    "grad(vmap)": lambda f: NESTS["grad"](different(f)),
}
DRAWING = [
    dropping,
    by_what_is_carried,
    filling,
    mapped,
    in_each_other,
    some_steps_at_a_time,
    in_a_vmap_of_its_own,
]
# All functions in one nest, and one function in all nests.
CASES = [(f, nest) for f in DRAWING for nest in DIFFERENTIATED if f is dropping or nest == "grad"]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("f", "nest"), CASES)
def test_differentiated_loop_with_draws_stays_one_operator(f, nest):
    nested = DIFFERENTIATED[nest](f)
    assert scans(tl.make_graph(nested)(X)) > 0
    as_uncompiled(nested)


def test_differentiated_loop_that_writes_to_its_draws_stays_one_operator():
    def step(c, y):
        noise = drawn()
        total = noise.sum()
        noise.mul_(2)
        return (c * noise + y).sin() * total, c

    gradient = NESTS["grad"](lambda x: tl.scan(step, x, XS)[1].sum(0))
    assert scans(tl.make_graph(gradient)(X)) > 0
    as_uncompiled(gradient)


def test_derivatives_use_the_drawn_numbers():
    compiled = tl.compile(filling, backend="replay")

    def drawing_alike(x):
        torch.manual_seed(0)
        return compiled(x)

    assert torch.autograd.gradcheck(drawing_alike, X.clone().requires_grad_())


class Noisy(torch.autograd.Function):
    """Draws inside forward, where the layers around the caller don't see it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * drawn()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y / x


@pytest.mark.sweep
@pytest.mark.parametrize(
    "step",
    [
        lambda c, y: (Noisy.apply(c) * y, c),
        lambda c, y: ((c * y + torch._standard_gamma(c.exp())).sin(), c),
    ],
    ids=["in a Function", "with a derivative"],
)
def test_loops_with_unreplayable_draws_are_unrolled(step):
    nested = tl.grad(lambda x: tl.scan(step, x, XS)[1].sum())
    assert scans(tl.make_graph(nested)(X)) == 0
    as_uncompiled(nested)


@pytest.mark.full
def test_inductor_compiles_steps_with_draws():
    nested = tl.vmap(tl.grad(total(dropping)), randomness="different")
    compiled = tl.compile(nested)
    xs = torch.stack([X, -X])
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = nested(xs)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(xs), expected)
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def branch_without_draws(x):
    return tl.cond(x.sum() > 0, torch.sin, torch.cos, x)


def loop_without_draws(x):
    return tl.while_loop(lambda c: c.sum() < 9, lambda c: c.abs() * 2 + 1, x)


def loop_of_branches_without_draws(x):
    return tl.while_loop(lambda c: c.sum() < 9, lambda c: branch_without_draws(c).abs() + 1 + c, x)


@pytest.mark.parametrize(
    "f", [branch_without_draws, loop_without_draws, loop_of_branches_without_draws]
)
@pytest.mark.parametrize("nest", ["vmap", "vmap of jvp"])
def test_captured_control_flow_without_draws_under_a_keyed_vmap(f, nest):
    def with_draws_after(x):
        return f(x) * drawn()

    def of_sample(x):
        if nest == "vmap":
            return with_draws_after(x)
        return tl.jvp(with_draws_after, (x,), (x,))[1]

    mapped = tl.vmap(of_sample, randomness="keyed", key=KEY)
    batch = torch.stack([X, X / 2, -X])
    compiled = tl.compile(mapped, backend="replay")
    torch.testing.assert_close(compiled(batch), mapped(batch))
