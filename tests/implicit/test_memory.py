"""Memory does not grow with the iterations, and nothing of them is recorded."""

import gc
import weakref

import pytest
import torch

import torchlayers as tl
from torchlayers.memory import PeakMemory


def _f(iterations, implicit):
    def solve(f, x):
        return tl.fori_loop(0, iterations, lambda i, x: f(x), x)

    def f(a):
        def step(x):
            return torch.tanh(0.5 * x + a)

        start = torch.zeros_like(a)
        if not implicit:
            return solve(step, start).sum()
        return tl.custom_fixed_point(
            step, start, solve, lambda g, y: y / g(torch.ones_like(y))
        ).sum()

    return f


def peak_memory(call):
    with PeakMemory() as memory:
        call()
    return memory.peak


def test_memory_does_not_grow_with_the_iterations():
    a = torch.linspace(-1, 1, 100_000, dtype=torch.float64)
    few, many = (peak_memory(lambda n=n: tl.grad(_f(n, True))(a)) for n in (10, 200))
    assert many <= few + a.nbytes
    assert peak_memory(lambda: tl.grad(_f(200, False))(a)) > 20 * many


@pytest.mark.parametrize("of", ["root", "linear"])
def test_tensors_are_freed_without_the_garbage_collector(of):
    a = torch.ones(3, dtype=torch.float64, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        captured = a.exp()
        freed = weakref.ref(captured)
        if of == "root":
            x = tl.custom_root(lambda x, c=captured: x**3 + x - c, torch.zeros_like(captured))
        else:
            x = tl.custom_linear_solve(lambda x, c=captured: x * c, captured)
        (gradient,) = torch.autograd.grad(x.sum(), a, create_graph=True)
        torch.autograd.grad(gradient.sum(), a)
        del captured, x, gradient
        assert freed() is None
    finally:
        gc.enable()
