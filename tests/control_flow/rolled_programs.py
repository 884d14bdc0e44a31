"""Loops long enough to be captured as one operator, and nests of transforms around them."""

import torch
from torch._higher_order_ops.scan import scan_op

import torchlayers as tl

STEPS = 11  # more than are unrolled
D = torch.float64
torch.manual_seed(0)
W = torch.randn(3, 3, dtype=D) / 3
XS = torch.randn(STEPS, 3, dtype=D)
X = torch.tensor([0.3, -0.5, 0.8], dtype=D)


def recurrent(x):
    """A recurrence; x is one sample, or a batch of them."""

    def step(state, slope):
        state = (state @ W.t() + slope * x).tanh()
        return state, state.sin()

    last, ys = tl.scan(step, x, XS)
    return last + ys.prod(0)


def backwards(x):
    """A reverse scan with float and integer carries, whose ys are partly None."""

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
    """A carry that is detached, and one that is discarded."""

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


def some_at_a_time(x):
    return tl.map(lambda row: (row * x).sin() @ W, XS.repeat(9, 1)[:-1], batch_size=9).sum(0)


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
    some_at_a_time,
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
