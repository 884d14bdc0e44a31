"""Control-flow programs, each with the same program in plain Python, for one sample.

A program maps a vector of three to a vector of three. The Python version branches on values with
`if` and `while`, so it runs on one sample at a time.
"""

from typing import NamedTuple

import torch

import torchlayers as tl


class Program(NamedTuple):
    name: str
    ours: object
    plain: object

    def __repr__(self):
        return self.name


SCALE = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)


def _branches(batched):
    def operands(x):
        return tl.cond(
            x.sum() > 0, lambda x: x.sin() * SCALE, lambda x: x.square() - 1, x, batched=batched
        )

    def plain_operands(x):
        return x.sin() * SCALE if x.sum() > 0 else x.square() - 1

    def captured(x):
        y = x.exp()
        return tl.cond(y[0] > 1, lambda: (y * x).cos(), lambda: y[1:].sum() + x, batched=batched)

    def plain_captured(x):
        y = x.exp()
        return (y * x).cos() if y[0] > 1 else y[1:].sum() + x

    def without_value_elsewhere(x):
        """Neither branch has a finite value or derivative where the other one is taken."""
        root = tl.cond(
            x[0] > 0, lambda x: x[0].sqrt() + x.sum(), lambda x: (-x[0]).log1p(), x, batched=batched
        )
        return root * x

    def plain_without_value_elsewhere(x):
        return (x[0].sqrt() + x.sum() if x[0] > 0 else (-x[0]).log1p()) * x

    def nested(x):
        def negative(x, y):
            return tl.cond(x[1] > 0, lambda: x * y, lambda: (x - y).sin(), batched=batched)

        y = x.tanh()
        return tl.cond(x[0] > 0, lambda x, y: x + y["a"], lambda x, y: negative(x, y["a"]), x,
                       {"a": y}, batched=batched)  # fmt: skip

    def plain_nested(x):
        y = x.tanh()
        if x[0] > 0:
            return x + y
        return x * y if x[1] > 0 else (x - y).sin()

    def pytrees(x):
        got = tl.cond(
            x.prod() > 0,
            lambda: {"a": x.sin(), "b": (x.sum(), None)},
            lambda: {"a": x * 2, "b": (x[0], None)},
            batched=batched,
        )
        return got["a"] * got["b"][0]

    def plain_pytrees(x):
        return x.sin() * x.sum() if x.prod() > 0 else 2 * x * x[0]

    def transforms_inside(x):
        def loss(y):
            return (y * x).sin().sum() + (y * SCALE).prod()

        return tl.cond(
            x[0] > 0,
            lambda x: tl.grad(loss)(x),
            lambda x: tl.vmap(lambda a: a * x.sum())(x),
            x,
            batched=batched,
        )

    def plain_transforms_inside(x):
        def loss(y):
            return (y * x).sin().sum() + (y * SCALE).prod()

        return tl.grad(loss)(x) if x[0] > 0 else x * x.sum()

    def number(x):
        index = (x[0] > 0).long() + 3 * (x[1] > 0).long() - 1
        sides = [torch.sin, lambda x: x * x.sum(), lambda x: x.exp() * SCALE]
        return tl.switch(index, sides, x, batched=batched)

    def plain_number(x):
        index = min(max(int(x[0] > 0) + 3 * int(x[1] > 0) - 1, 0), 2)
        return [torch.sin, lambda x: x * x.sum(), lambda x: x.exp() * SCALE][index](x)

    yield "cond of operands", operands, plain_operands
    yield "cond of what it captures", captured, plain_captured
    yield "cond without a value elsewhere", without_value_elsewhere, plain_without_value_elsewhere
    yield "cond in cond", nested, plain_nested
    yield "cond of pytrees", pytrees, plain_pytrees
    yield "cond of transforms", transforms_inside, plain_transforms_inside
    yield "switch", number, plain_number


def _loops(batched):
    def grow(x):
        return tl.while_loop(
            lambda y: y.square().sum() < 30, lambda y: y * 1.5 + 0.3 * x.sin(), x, batched=batched
        )

    def plain_grow(x):
        y = x
        while y.square().sum() < 30:
            y = y * 1.5 + 0.3 * x.sin()
        return y

    def counted(x):
        def trip(carry):
            i, y = carry
            return i + 1, {"y": y["y"].sin() + x / i}

        start = (x[0] > 0).double() + 1, {"y": x}
        end = 2 + x[1].abs().detach() * 3
        return tl.while_loop(lambda c: c[0] < end, trip, start, batched=batched)[1]["y"]

    def plain_counted(x):
        i, y = float(x[0] > 0) + 1, x
        while i < 2 + float(x[1].detach().abs()) * 3:
            y = y.sin() + x / i
            i += 1
        return y

    def dangerous_afterwards(x):
        """One more trip would give nan."""
        return tl.while_loop(
            lambda y: y.min() > 1, lambda y: (y - 1).sqrt(), 5 * x.square() + 2, batched=batched
        )

    def plain_dangerous_afterwards(x):
        y = 5 * x.square() + 2
        while y.min() > 1:
            y = (y - 1).sqrt()
        return y

    def loop_in_branch(x):
        def halved(x):
            return tl.while_loop(lambda y: y.abs().sum() > 0.5, lambda y: y / 2 + 0.01 * x, x,
                                 batched=batched)  # fmt: skip

        return tl.cond(x[0] > 0, halved, lambda x: x.sin(), x)

    def plain_loop_in_branch(x):
        if x[0] <= 0:
            return x.sin()
        y = x
        while y.abs().sum() > 0.5:
            y = y / 2 + 0.01 * x
        return y

    def branch_in_loop(x):
        def trip(y):
            return tl.cond(y[0] > 1, lambda: y + x.abs() + 0.5, lambda: y.abs() + 0.3)

        return tl.while_loop(lambda y: y.sum() < 5, trip, x, batched=batched)

    def plain_branch_in_loop(x):
        y = x
        while y.sum() < 5:
            y = y + x.abs() + 0.5 if y[0] > 1 else y.abs() + 0.3
        return y

    def bounds(x):
        end = (x[0].detach() * 3).ceil().long()
        return tl.fori_loop(-1, end, lambda i, y: y.sin() * i + x, x, batched=batched)

    def plain_bounds(x):
        y = x
        for i in range(-1, int((x[0].detach() * 3).ceil())):
            y = y.sin() * i + x
        return y

    yield "while_loop", grow, plain_grow
    yield "while_loop over a pytree", counted, plain_counted
    yield "while_loop to where nan begins", dangerous_afterwards, plain_dangerous_afterwards
    yield "while_loop in cond", loop_in_branch, plain_loop_in_branch
    yield "cond in while_loop", branch_in_loop, plain_branch_in_loop
    yield "fori_loop", bounds, plain_bounds


def _scans():
    def scan(x):
        def step(carry, s):
            return carry * s.cos() + x[0], {"y": carry.sum() * s}

        last, ys = tl.scan(step, x, torch.stack([x, x * SCALE]), reverse=True)
        return last + ys["y"].prod(0)

    def plain_scan(x):
        carry, product = x, 1
        for s in (x * SCALE, x):
            product = product * carry.sum() * s
            carry = carry * s.cos() + x[0]
        return carry + product

    def cond_in_scan(x):
        def step(carry, s):
            carry = tl.cond(s > 0, lambda: carry * s, lambda: carry.sin())
            return carry, None

        return tl.scan(step, x, x)[0]

    def plain_cond_in_scan(x):
        carry = x
        for s in x.unbind():
            carry = carry * s if s > 0 else carry.sin()
        return carry

    def recurrence(x):
        def affine(first, then):
            return then[0] * first[0], then[0] * first[1] + then[1]

        elements = torch.stack([x, x.sin(), x * SCALE, x.cos(), x + 1]), x.expand(5, 3)
        return tl.associative_scan(affine, elements)[1].sum(0)

    def plain_recurrence(x):
        total, y = 0, torch.zeros_like(x)
        for a in (x, x.sin(), x * SCALE, x.cos(), x + 1):
            y = a * y + x if isinstance(total, torch.Tensor) else x
            total = total + y
        return total

    def mapped(x):
        return tl.map(lambda s: tl.cond(s > 0, lambda: s.sin(), lambda: s * x.sum()), x)

    def plain_mapped(x):
        return torch.stack([s.sin() if s > 0 else s * x.sum() for s in x.unbind()])

    def mapped_in_batches(x):
        return tl.map(
            lambda s: tl.cond(s > 0, lambda: s.sin(), lambda: s * x.sum()), x, batch_size=2
        )

    yield "scan", scan, plain_scan
    yield "cond in scan", cond_in_scan, plain_cond_in_scan
    yield "associative_scan", recurrence, plain_recurrence
    yield "map", mapped, plain_mapped
    yield "map in batches", mapped_in_batches, plain_mapped


PROGRAMS = [
    *(
        Program(f"{name}, {by}", f, g)
        for by in ("select", "gather")
        for name, f, g in _branches(by)
    ),
    *(Program(f"{name}, {by}", f, g) for by in ("hold", "drop") for name, f, g in _loops(by)),
    *(Program(name, f, g) for name, f, g in _scans()),
]
