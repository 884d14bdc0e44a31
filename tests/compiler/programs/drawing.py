"""Programs that draw random numbers, read in branches and loops, or fill caches."""

import functools
import math
import random
import types

import numpy as np
import torch

import torchlayers as tl


def float_of_random():
    r = random.Random(3)

    def f(x):
        p = float(r.random())
        return x * p

    return f, lambda: r.getstate()


def int_of_uniform():
    r = random.Random(3)

    def f(x):
        return x * r.uniform(-1, 1) * 2.0 + r.gauss(0, 1) ** 2 + x.sin() * r.randint(0, 10)

    return f, lambda: r.getstate()


def math_of_draw():
    r = random.Random(3)

    def f(x):
        return x * math.sqrt(r.random()) + math.exp(r.gauss(0, 1))

    return f, lambda: r.getstate()


def min_max_of_draw():
    r = random.Random(3)

    def f(x):
        p = min(max(r.random(), 0.2), 0.8)
        return x * p

    return f, lambda: r.getstate()


def numpy_generator_scalars():
    g = np.random.default_rng(0)

    def f(x):
        a = g.normal()
        b = float(g.uniform(0, 1))
        return x * a + b

    return f, lambda: str(g.bit_generator.state)


def numpy_generator_integers():
    g = np.random.default_rng(0)

    def f(x):
        k = int(g.integers(0, 3))
        return x * (k + 1)

    return f, lambda: str(g.bit_generator.state)


def random_branch():
    r = random.Random(3)

    def f(x):
        if r.random() < 0.5:
            return x.sin()
        return x.cos()

    return f, lambda: r.getstate()


def random_choice_list():
    r = random.Random(3)
    fs = [torch.sin, torch.cos, torch.exp]

    def f(x):
        return r.choice(fs)(x)

    return f, lambda: r.getstate()


def random_shuffle():
    r = random.Random(3)

    def f(x):
        order = [0, 1, 2]
        r.shuffle(order)
        return x[order]

    return f, lambda: r.getstate()


def random_sample():
    r = random.Random(3)

    def f(x):
        i, j = r.sample(range(3), 2)
        return x[i] * x + x[j]

    return f, lambda: r.getstate()


def random_choices():
    r = random.Random(3)

    def f(x):
        a, b = r.choices([0.5, 1.5, 2.5], k=2)
        return x * a + b

    return f, lambda: r.getstate()


def draw_beside_read():
    r = random.Random(3)

    def f(x):
        p = r.random()
        if x.sum() > 0:
            return x * p
        return x - p

    return f, lambda: r.getstate()


def read_then_draw():
    r = random.Random(3)

    def f(x):
        if x.sum() > 0:
            return x * r.random()
        return x

    return f, lambda: r.getstate()


def draw_and_log():
    r = random.Random(3)
    log = []

    def f(x):
        p = r.random()
        log.append(p)
        log.append(x.sum().item())
        return x * p

    return f, lambda: (r.getstate(), list(log))


def draw_compared_with_item():
    r = random.Random(3)
    acc = [0]

    def f(x):
        if r.random() < torch.sigmoid(x.sum()).item():
            acc[0] += 1
            return x.sin()
        return x

    return f, lambda: (r.getstate(), list(acc))


def global_random():
    random.seed(0)

    def f(x):
        return x * random.random()

    return f, lambda: random.getstate()


def read_in_cond():
    def f(x):
        def yes(x):
            return x * (2.0 if x.max().item() > 1 else 3.0)

        return tl.cond(x.sum() > 0, yes, lambda x: x.sin(), x)

    return f, lambda: 0


def item_in_cond():
    def f(x):
        return tl.cond(x.sum() > 0, lambda x: x * x.max().item(), lambda x: x.sin(), x)

    return f, lambda: 0


def read_in_while():
    def f(x):
        def body(carry):
            i, x = carry
            if x.norm() > 3:
                x = x / 2
            return i + 1, x + 1

        return tl.while_loop(lambda carry: carry[0] < 3, body, (torch.tensor(0), x))[1]

    return f, lambda: 0


def read_in_switch():
    def f(x):
        index = (x > 0).sum().clamp(0, 1)
        return tl.switch(index, [torch.sin, lambda x: x[x > 0.3].sum() * x], x)

    return f, lambda: 0


def read_in_scan():
    def f(x):
        def body(c, y):
            if c > 1:
                c = c / 2
            return c + y, c

        return tl.scan(body, x[0], x.repeat(5))[1]

    return f, lambda: 0


def lru_cached():
    @functools.lru_cache
    def weights(n):
        return torch.arange(float(n)).double() + 1

    def f(x):
        return x * weights(3)

    return f, lambda: (weights.cache_info().misses, weights(3))


def cached_plain():
    @functools.cache
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def f(x):
        return x * fib(10)

    return f, lambda: fib.cache_info().misses


def cached_keyed_by_read():
    @functools.cache
    def w(n):
        return torch.ones(3, dtype=torch.float64) * (n + 1)

    def f(x):
        return x * w(int((x > 0).sum()))

    return f, lambda: w.cache_info().misses


def cached_property_tensor():
    class A:
        @functools.cached_property
        def w(self):
            return torch.arange(3.0).double()

    a = A()

    def f(x):
        return x * a.w

    return f, lambda: dict(vars(a))


DRAWING = [
    value
    for value in [*globals().values()]
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
