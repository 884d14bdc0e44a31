"""Programs whose state is in arrays, behind weak references, or in numbers that are converted."""

import array
import contextvars
import math
import random
import types
import weakref

import numpy as np
import torch


def array_of_losses():
    a, i = np.zeros(5), [0]

    def f(x):
        a[i[0]] = x.sum().item()
        i[0] += 1
        return x * 2

    return f, a


def array_fixed_entry():
    a = np.zeros(3)

    def f(x):
        a[0] = x.sum().item()
        a[1] += 1
        return x * 2

    return f, a


def array_confusion():
    a = np.zeros((2, 2), dtype="int64")

    def f(x):
        p, q = int(x.sum() > 0), int(x[0] > 0)
        a[p, q] += 1
        return x * 2

    return f, a


def array_running_mean():
    a = np.zeros(1)

    def f(x):
        a[0] = 0.9 * a[0] + 0.1 * x.mean().item()
        return x - a[0]

    return f, a


def weakref_store():
    class Box:
        pass

    b = Box()
    b.v = 0
    ref = weakref.ref(b)

    def f(x):
        ref().v += 1
        return x * ref().v

    return f, b


def bytearray_state():
    ba = bytearray(4)

    def f(x):
        ba[0] += 1
        return x * ba[0]

    return f, lambda: bytes(ba)


def array_state():
    counts = array.array("d", [0.0])

    def f(x):
        counts[0] += 1
        return x * counts[0]

    return f, lambda: [*counts]


def context_variable():
    step = contextvars.ContextVar("step", default=0)
    step.set(0)

    def f(x):
        step.set(step.get() + 1)
        return x * step.get()

    return f, lambda: step.get()


def counter_float_cast():
    s = {"total": 0.0, "n": 0}

    def f(x):
        s["total"] += float((x * x).mean())
        s["n"] += int((x > 0).sum())
        return x / (1 + s["total"])

    return f, s


def zscore_welford():
    s = {"n": 0, "mu": 0.0, "m2": 0.0}

    def f(x):
        v = x.mean().item()
        s["n"] += 1
        d = v - s["mu"]
        s["mu"] += d / s["n"]
        s["m2"] += d * (v - s["mu"])
        return (x - s["mu"]) / math.sqrt(s["m2"] / s["n"] + 1e-3)

    return f, s


def np_random_choice():
    g = np.random.default_rng(3)
    c = np.zeros(3, dtype=np.int64)

    def f(x):
        i = int(g.integers(3))
        c[i] += 1
        return x[i] * x

    return f, (c,)


def scheduled_sampling():
    r = random.Random(1)
    s = {"p": 1.0}

    def f(x):
        out = []
        h = x[0]
        for i in range(3):
            h = torch.tanh(x[i] if r.random() < s["p"] else h)
            out.append(h)
        s["p"] *= 0.8
        return torch.stack(out)

    return f, s


def int_of_counter():
    s = {"v": 0.0}

    def f(x):
        s["v"] += 0.5
        return x * int(s["v"])

    return f, s


def top_k_checkpoint():
    best = {"loss": float("inf"), "w": None}

    def f(x):
        loss = (x * x).sum()
        if loss.item() < best["loss"]:
            best["loss"] = loss.item()
            best["w"] = x.detach().clone()
        return x - best["w"]

    return f, best


def early_stopping():
    class Stopper:
        def __init__(self):
            self.best, self.bad, self.stopped = math.inf, 0, False

        def step(self, loss):
            if loss < self.best - 1e-4:
                self.best, self.bad = loss, 0
            else:
                self.bad += 1
                self.stopped = self.bad >= 2

    st = Stopper()

    def f(x):
        loss = (x * x).sum()
        st.step(loss.item())
        return x * (0.0 if st.stopped else 1.0)

    return f, st


ARRAYS = [
    value
    for value in [*globals().values()]
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
