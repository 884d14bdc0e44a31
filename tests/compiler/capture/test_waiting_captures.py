"""Captured functions that wait for other threads, which capture or compile meanwhile."""

import gc
import logging
import sys
import threading

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

import torchlayers as tl
from tests.compiler.capture.test_other_threads import LIMIT, on_another_thread

X = torch.ones(3)


def torch_state():
    """State of torch, and of Python, that a trace by torch.fx or a capture replaces."""
    return (
        nn.Module.__call__,
        nn.Module.__getattr__,
        torch.fx._symbolic_trace.is_fx_tracing(),
        torch.fx._symbolic_trace.CURRENT_PATCHER,
        torch.fx._lazy_graph_module._use_lazy_graph_module_flag,
        torch.fx.traceback.has_preserved_node_meta(),
        proxy_tensor._CURRENT_MAKE_FX_TRACER,
        torch.manual_seed,
        torch.random.manual_seed,
        torch.random.set_rng_state,
        sys.modules[torch.optim.RAdam.__module__]._get_capturable_supported_devices,
        dict(modules._global_forward_pre_hooks),
        dict(optimizers._global_optimizer_pre_hooks),
        dict(optimizers._global_optimizer_post_hooks),
        [*logging.getLogger("torch._subclasses.fake_tensor").filters],
        torch._dynamo.eval_frame._stance,
        gc.isenabled(),
    )


@pytest.fixture(autouse=True)
def state_is_restored():
    tl.compile(torch.sin, backend="replay")(X)  # imports what it needs
    before = torch_state()
    yield
    assert torch_state() == before


def compiled_by_torch():
    return torch.compile(lambda x: x.sin() * 2, backend="eager")(X).sum()


def captured():
    return tl.compile(lambda x: (x.cos(), x * 3), backend="replay")(X)[1].sum()


def differentiated():
    return tl.compile(tl.grad(lambda x: (x**3).sum()), backend="replay")(X).sum()


def linearized():
    return tl.linearize(torch.sin, X)[1](X).sum()


ACTIONS = [compiled_by_torch, captured, differentiated, linearized]


@pytest.mark.parametrize("action", ACTIONS)
def test_captured_function_may_wait_for_a_thread(action):
    expected, results = action(), []

    def f(x):
        results.append(on_another_thread(action))
        return x.sin() + 1

    graph = tl.make_graph(f)(X)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.sin.default,
        torch.ops.aten.add.Tensor,
    ]
    torch.testing.assert_close(tl.compile(f, backend="replay")(X), X.sin() + 1)
    torch.testing.assert_close(results, [expected] * 2)


@pytest.mark.parametrize("action", ACTIONS)
def test_captured_branch_and_loop_may_wait_for_a_thread(action):
    def waits(x):
        on_another_thread(action)
        return x * 2

    def f(x):
        x = tl.cond(x.sum() > 0, waits, torch.neg, x)
        return tl.while_loop(lambda x: x.sum() < 20, waits, x)

    torch.testing.assert_close(tl.compile(f, backend="replay")(X), X * 8)


@pytest.mark.parametrize("action", ACTIONS)
def test_linearized_function_may_wait_for_a_thread(action):
    def f(x):
        on_another_thread(action)
        return x.sin()

    torch.testing.assert_close(tl.linearize(f, X)[1](X), X.cos())


def test_captures_that_overlap_are_not_mixed_and_restore_all():
    """The first ends first, so that what it replaced is not what the second one found."""
    first_runs, second_runs, first_is_done = (threading.Event() for _ in range(3))
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    seed, results = torch.manual_seed, {}

    def first(x):
        first_runs.set()
        assert second_runs.wait(LIMIT)
        return net(x).exp()

    def second(x):
        assert first_runs.wait(LIMIT)
        second_runs.set()
        y = net(x)
        assert first_is_done.wait(LIMIT)
        assert torch.manual_seed is not seed  # it is still watched for this capture
        return tl.cond(y.sum() > 100, torch.sin, torch.cos, y)

    def run_first():
        results["first"] = tl.compile(first, backend="replay")(X)
        torch.manual_seed(torch.initial_seed())  # this thread captures nothing now
        first_is_done.set()

    def run_second():
        results["second"] = tl.compile(second, backend="replay")(X)

    threads = [threading.Thread(target=run, daemon=True) for run in (run_first, run_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    torch.testing.assert_close(results["first"], net(X).exp())
    torch.testing.assert_close(results["second"], net(X).cos())


@pytest.mark.sweep
def test_threads_capture_while_another_one_compiles():
    """One thread alone calls torch.compile: two disturb each other in torch 2.13."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    results = {}

    def work(number):
        for step in range(4):

            def loss(x, scale=number * 10.0 + step):
                return (net(x) * scale).sum()

            if number == 0:
                of_torch = torch.compile(loss, backend="aot_eager")
                (result,) = torch.autograd.grad(of_torch(y := X.clone().requires_grad_()), y)
            else:
                result = tl.compile(tl.grad(loss), backend="replay")(X)
            results[number, step] = result, tl.grad(loss)(X)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(results) == 12
    for result, expected in results.values():
        torch.testing.assert_close(result, expected)
