"""Programs with torch's own control flow, each with its unrolled version, for one sample.

They cover the same cases as torch's tests of these operators: operands that are pytrees, unused or
captured, modules, nested branches, nested loops, numbers in a carry, scans along any dimension and
in reverse, and derivatives through all of these. As in programs.py, a program takes a vector of
three, and the unrolled version runs on one sample at a time.
"""

import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop

from tests.control_flow.programs import SCALE, Program

torch.manual_seed(0)
LINEAR = torch.nn.Linear(3, 3, dtype=torch.float64)
MATRIX = torch.randn(3, 3, dtype=torch.float64) / 2


def _conds():
    def simple(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.square().cos().abs(), (x,))

    yield "cond", simple, lambda x: x.sin() if x.sum() > 0 else x.square().cos().abs()

    def nested(x):
        def second(x, y):
            return torch.cond(x[1] > 0, lambda x, y: x / (2 + y), lambda x, y: third(x, y), (x, y))

        def third(x, y):
            return torch.cond(x[2] > 0, lambda x, y: x * y.exp(), lambda x, y: x - y, [x, y])

        return torch.cond(x[0] > 0, second, lambda x, y: third(y, x * SCALE), (x, x.square()))

    def plain_nested(x):
        def third(x, y):
            return x * y.exp() if x[2] > 0 else x - y

        y = x.square()
        if x[0] <= 0:
            return third(y, x * SCALE)
        return x / (2 + y) if x[1] > 0 else third(x, y)

    yield "cond in cond in cond", nested, plain_nested

    def pytrees(x):
        def true_fn(given):
            return {"u": given["t"][0] * given["t"][1]["b"], "v": [given["t"][0].sum()]}

        def false_fn(given):
            return {"u": given["t"][0] + given["t"][2][0], "v": [given["t"][0].prod()]}

        given = {"t": [x, {"b": x.cos()}, (SCALE,)]}
        got = torch.cond(x[0] > x[1], true_fn, false_fn, (given,))
        return got["u"] * got["v"][0]

    def plain_pytrees(x):
        return x * x.cos() * x.sum() if x[0] > x[1] else (x + SCALE) * x.prod()

    yield "cond of pytrees, not all used", pytrees, plain_pytrees

    def module(x):
        return torch.cond(x[0] > 0, LINEAR, lambda x: x * LINEAR(x).tanh(), (x,))

    yield "cond of a module", module, lambda x: LINEAR(x) if x[0] > 0 else x * LINEAR(x).tanh()

    def captured(x):
        y = x.exp()
        return torch.cond(y[0] > 1, lambda: (y * x).cos(), lambda: y[1:].sum() + x)

    yield (
        "cond of what it captures",
        captured,
        lambda x: (x.exp() * x).cos() if x.exp()[0] > 1 else x.exp()[1:].sum() + x,
    )

    def functions(x):
        return torch.cond(x.sum() > 0, torch.add, torch.mul, (x, x.sin()))

    yield (
        "cond of torch's functions",
        functions,
        lambda x: x + x.sin() if x.sum() > 0 else x * x.sin(),
    )

    def in_a_loop(x):
        for i in range(3):
            x = torch.cond(i < 2, lambda x: x * x + 1, lambda x: x.sin(), (x,))
            x = torch.cond(x.max() > 2, lambda x: x / 2, lambda x: x.clone(), (x,))
        return x

    def plain_in_a_loop(x):
        for i in range(3):
            x = x * x + 1 if i < 2 else x.sin()
            x = x / 2 if x.max() > 2 else x
        return x

    yield "cond in a loop of Python", in_a_loop, plain_in_a_loop

    def with_writes(x):
        def true_fn(x):
            y = x.sin()
            y.add_(4)
            return y * x

        return torch.cond(x[0] > 0, true_fn, lambda x: x.cos(), (x,))

    yield (
        "cond that writes to its own",
        with_writes,
        lambda x: (x.sin() + 4) * x if x[0] > 0 else x.cos(),
    )

    def without_value_elsewhere(x):
        return x * torch.cond(x[0] > 0, lambda x: x[0].sqrt(), lambda x: (-x[0]).log1p(), (x,))

    yield (
        "cond without a value elsewhere",
        without_value_elsewhere,
        lambda x: x * (x[0].sqrt() if x[0] > 0 else (-x[0]).log1p()),
    )

    def number(x):
        """A predicate that is a number, and one that is neither bool nor zero-dimensional."""
        y = torch.cond((x > 0).sum().reshape(1, 1), lambda x: x * 2, lambda x: x.exp(), (x,))
        return torch.cond(True, lambda x, y: x * y, lambda x, y: x, (x, y))

    yield "cond of a number", number, lambda x: x * (x * 2 if (x > 0).any() else x.exp())


def _loops():
    def simple(x):
        return while_loop(lambda x: x.square().sum() < 30, lambda x: (x * 1.5 + SCALE,), (x,))[0]

    def plain_simple(x):
        while x.square().sum() < 30:
            x = x * 1.5 + SCALE
        return x

    yield "while_loop", simple, plain_simple

    def nested(x):
        def cond_fn(i, y):
            return i < 2

        def body_fn(i, y):
            j, y = while_loop(
                lambda j, y: (j < 3) & (y.abs().sum() < 9),
                lambda j, y: (j + 1, y * 1.2 + x),
                (i.clone(), y),
            )
            return i + 1, y * j.cos()

        return while_loop(cond_fn, body_fn, (torch.zeros(()), x))[1]

    def plain_nested(x):
        y = x
        for i in range(2):
            j = i
            while j < 3 and y.abs().sum() < 9:
                j, y = j + 1, y * 1.2 + x
            y = y * torch.tensor(float(j)).cos()
        return y

    yield "while_loop in while_loop", nested, plain_nested

    def pytrees(x):
        def body_fn(i, carried):
            return i + 1, {"y": [carried["y"][0].sin(), carried["y"][1] + carried["y"][0]]}

        _, last = while_loop(lambda i, _: i < 3, body_fn, (0, {"y": [x, x * SCALE]}))
        return last["y"][0] * last["y"][1]

    def plain_pytrees(x):
        y, z = x, x * SCALE
        for _ in range(3):
            y, z = y.sin(), z + y
        return y * z

    yield "while_loop over a pytree, and an int", pytrees, plain_pytrees

    def no_trip(x):
        last = while_loop(
            lambda y: y["a"].sum() > 1e6, lambda y: ({"a": (y["a"] * 2).log()},), ({"a": x},)
        )
        return last[0]["a"] * x

    yield "while_loop without a trip", no_trip, lambda x: x * x

    def module(x):
        def body_fn(i, y):
            return i - 1, LINEAR(y).tanh() + x

        return while_loop(lambda i, y: i > 0, body_fn, (torch.tensor(4), x))[1]

    def plain_module(x):
        y = x
        for _ in range(4):
            y = LINEAR(y).tanh() + x
        return y

    yield "while_loop of a module", module, plain_module

    def with_cond(x):
        def body_fn(i, y):
            y = torch.cond(y[0] > 1, lambda y: y * x.cos(), lambda y: y + x.abs() + 0.5, (y,))
            return i + 1, y

        return while_loop(lambda i, y: i < 3, body_fn, (torch.tensor(0), x))[1]

    def plain_with_cond(x):
        y = x
        for _ in range(3):
            y = y * x.cos() if y[0] > 1 else y + x.abs() + 0.5
        return y

    yield "cond in while_loop", with_cond, plain_with_cond


def _scans():
    def cumulative(x):
        last, ys = scan(lambda c, y: (c + y, c * y), x.sum(), x)
        return last * ys

    def plain_cumulative(x):
        total, ys = x.sum(), []
        for y in x.unbind():
            ys.append(total * y)
            total = total + y
        return total * torch.stack(ys)

    yield "scan", cumulative, plain_cumulative

    def reversed_along(x):
        """A reverse scan along the last dimension of a non-contiguous tensor."""
        xs = torch.outer(x, SCALE).t()
        last, ys = scan(lambda c, y: (c * y, c + y), x, xs, dim=1, reverse=True)
        return last + ys.sum(1)

    def plain_reversed_along(x):
        c, total = x, 0
        for y in reversed(torch.outer(x, SCALE).t().unbind(1)):
            total = total + c + y
            c = c * y
        return c + total

    yield "scan along the last dimension, reversed", reversed_along, plain_reversed_along

    def recurrent(x):
        """Captured weights, and a state whose initial value has no derivative."""

        def step(h, y):
            h = (MATRIX @ h + x * y).tanh()
            return h, h.clone()

        last, ys = scan(step, torch.zeros(3, dtype=torch.float64), torch.stack([x, x.sin()]))
        return last * ys.sum(0)

    def plain_recurrent(x):
        h, total = torch.zeros(3, dtype=torch.float64), 0
        for y in (x, x.sin()):
            h = (MATRIX @ h + x * y).tanh()
            total = total + h
        return h * total

    yield "scan of a recurrent network", recurrent, plain_recurrent

    def pytrees(x):
        def step(carry, y):
            h, (count,) = carry["h"], carry["n"]
            h = h * y["a"] + y["b"][0]
            return {"h": h, "n": (count + 1,)}, {"out": [h.sin(), count.clone()]}

        init = {"h": x, "n": (torch.zeros((), dtype=torch.int64),)}
        xs = {"a": torch.stack([x, x.cos()]), "b": [torch.stack([x * SCALE, x])]}
        last, ys = scan(step, init, xs)
        return last["h"] * ys["out"][0].sum(0) * last["n"][0] + ys["out"][1].sum()

    def plain_pytrees(x):
        h, total = x, 0
        for a, b in ((x, x * SCALE), (x.cos(), x)):
            h = h * a + b
            total = total + h.sin()
        return h * total * 2 + 1

    yield "scan over pytrees, with integers", pytrees, plain_pytrees

    def scan_in_cond(x):
        def prefix(x):
            return scan(lambda c, y: (c * y, c + y), x.sum(), x)[1]

        return torch.cond(x[0] > 0, prefix, lambda x: x * x, (x,))

    def plain_scan_in_cond(x):
        if x[0] <= 0:
            return x * x
        c, ys = x.sum(), []
        for y in x.unbind():
            ys.append(c + y)
            c = c * y
        return torch.stack(ys)

    yield "scan in cond", scan_in_cond, plain_scan_in_cond

    def cond_in_scan(x):
        def step(c, y):
            c = torch.cond(y > 0, lambda c, y: c * y, lambda c, y: c.sin(), (c, y))
            return c, c.sum()

        last, ys = scan(step, x, x)
        return last * ys

    def plain_cond_in_scan(x):
        c, ys = x, []
        for y in x.unbind():
            c = c * y if y > 0 else c.sin()
            ys.append(c.sum())
        return c * torch.stack(ys)

    yield "cond in scan", cond_in_scan, plain_cond_in_scan


def _others():
    def products(x):
        """Matrix products, whose order matters."""
        powers = torch.stack([MATRIX * a for a in x.unbind()] + [MATRIX + x])
        found = associative_scan(lambda a, b: a @ b, powers, 0, combine_mode="generic")
        return found.sum((0, 1))

    def plain_products(x):
        total = product = MATRIX * x[0]
        for matrix in (MATRIX * x[1], MATRIX * x[2], MATRIX + x):
            product = product @ matrix
            total = total + product
        return total.sum(0)

    yield "associative_scan of matrices", products, plain_products

    def recurrence(x):
        def affine(first, then):
            return then[0] * first[0], then[0] * first[1] + then[1]

        elements = torch.stack([x, x.sin(), x * SCALE], 1), x.unsqueeze(1).expand(3, 3)
        found = associative_scan(affine, elements, 1, reverse=True, combine_mode="generic")
        return found[1].sum(1)

    def plain_recurrence(x):
        y = x
        total = x
        for a in (x.sin(), x):
            y = a * y + x
            total = total + y
        return total

    yield "associative_scan of pairs, reversed", recurrence, plain_recurrence

    def mapped(x):
        def f(xs, y):
            return {"a": xs[0].sin() * xs[1].sum(), "b": (xs[0] * y,)}

        got = map(f, [x, torch.outer(x, SCALE)], x[0])
        return got["a"] + got["b"][0]

    def plain_mapped(x):
        return x.sin() * torch.outer(x, SCALE).sum(1) + x * x[0]

    yield "map over pytrees", mapped, plain_mapped

    def map_in_map(x):
        table = map(lambda a: map(lambda b: (a * b).sin(), x), x)
        return table.prod(0)

    yield "map in map", map_in_map, lambda x: torch.outer(x, x).sin().prod(0)

    def cond_in_map(x):
        def f(a):
            return torch.cond(a > 0, lambda a: a.sqrt(), lambda a: a * x.sum(), (a,))

        return map(f, x)

    yield (
        "cond in map",
        cond_in_map,
        lambda x: torch.stack([a.sqrt() if a > 0 else a * x.sum() for a in x.unbind()]),
    )


TORCH_PROGRAMS = [
    Program(name, theirs, plain)
    for kind in (_conds, _loops, _scans, _others)
    for name, theirs, plain in kind()
]
