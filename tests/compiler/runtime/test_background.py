"""Calls of compiled functions while Inductor compiles, with a fake compiler on a thread."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.graph_description import NotDescribableError
from torchlayers.compiler.runtime import background
from torchlayers.fx.program import replay

X = torch.linspace(0, 1, 3)


class Compiler:
    """Compiles when it may: ``allow`` is set at first."""

    def __init__(self):
        self.allow = threading.Event()
        self.allow.set()
        self.started = threading.Event()
        self.graphs = []
        self.threads = set()
        self.ran = []  # the graphs whose code ran
        self.changed = lambda results: results
        self.error = None

    def __call__(self, graph, threads, options=None):
        self.graphs.append(graph)
        self.threads.add(threading.current_thread())
        self.started.set()
        assert self.allow.wait(60)
        if self.error is not None:
            raise self.error

        def run(tensors):
            self.ran.append(graph)
            return self.changed(graph(*tensors))

        return run


@pytest.fixture
def compiler(monkeypatch):
    def cannot_be_sent(*_):
        raise NotDescribableError

    made = Compiler()
    monkeypatch.setattr(inductor, "compile_graph", made)
    monkeypatch.setattr(background, "job_of", cannot_be_sent)
    yield made
    made.allow.set()


def how(compiled):
    return [entry.how for entry in compiled.report().signatures]


def test_calls_are_replayed_until_the_code_is_ready(compiler):
    compiler.allow.clear()
    compiled = tl.compile(torch.sin, wait=False)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X.sin(), rtol=0, atol=0)
    assert how(compiled) == ["replay, until compiled"]
    assert not compiled.wait(timeout=0)
    compiler.allow.set()
    assert compiled.wait()
    assert (how(compiled), compiler.ran) == (["inductor"], [])
    torch.testing.assert_close(compiled(X), X.sin())
    assert len(compiler.ran) == 1
    assert threading.current_thread() not in compiler.threads


def test_waiting_without_a_compilation_returns_at_once(compiler):
    compiled = tl.compile(torch.sin, wait=False)
    assert compiled.wait()
    replayed = tl.compile(torch.sin, backend="replay")
    replayed(X)
    assert replayed.wait(timeout=0)


def test_calls_after_the_switch_run_the_code_itself(compiler):
    code = tl.compile(torch.cos, backend="replay")
    compiled = tl.compile(torch.sin, wait=False)
    for each in (code, compiled):
        each(X)
        each.wait()
        each(X)
    (entry,) = compiled._entries.all
    (of_replay,) = code._entries.all
    assert entry.run.__qualname__ == "Compiler.__call__.<locals>.run"
    assert type(of_replay.run) is tl._C.Program


def test_the_first_result_of_the_code_is_compared(compiler):
    compiler.changed = lambda results: [2 * result for result in results]
    compiled = tl.compile(torch.sin, wait=False)
    compiled(X)
    compiled.wait()
    with pytest.warns(UserWarning, match=r"compiled \S+ incorrectly: result 0 is off by"):
        torch.testing.assert_close(compiled(X), X.sin())
    torch.testing.assert_close(compiled(X), X.sin())
    assert how(compiled)[0].startswith("replay (inductor's result 0 is off by")


def test_without_check_the_code_runs_once_at_its_first_call(compiler):
    compiled = tl.compile(torch.sin, wait=False, check=False)
    compiled(X)
    compiled.wait()
    compiled(X)
    assert len(compiler.ran) == 1


@pytest.mark.parametrize("where", ["the next call", "wait"])
def test_errors_are_reported_once_by_the_program_itself(compiler, where):
    compiler.error = RuntimeError("no lowering")
    compiled = tl.compile(torch.sin, wait=False)
    compiled(X)
    (compilation,) = background._in_flight or [None]
    assert compilation is None or compilation.wait()
    with pytest.warns(
        UserWarning, match=r"did not compile .* \(RuntimeError: no lowering\)"
    ) as told:
        compiled.wait() if where == "wait" else compiled(X)
        torch.testing.assert_close(compiled(X), X.sin())
    assert len(told) == 1
    assert told[0].filename == __file__
    assert how(compiled) == ["replay (RuntimeError: no lowering)"]


def test_an_interrupted_first_comparison_is_repeated(compiler):
    compiled = tl.compile(torch.sin, wait=False)
    compiled(X)
    compiled.wait()

    def interrupt(results):
        compiler.changed = lambda results: results
        signal.raise_signal(signal.SIGINT)
        return results

    compiler.changed = interrupt
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    assert tl.current_stack() == ()
    for _ in range(2):
        torch.testing.assert_close(compiled(X), X.sin())
    assert len(compiler.ran) == 3


def test_interrupted_waiting_can_be_repeated(compiler):
    compiler.allow.clear()
    compiled = tl.compile(torch.sin, wait=False)
    compiled(X)
    assert compiler.started.wait(60)
    main = threading.main_thread().ident
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        compiled.wait()
    torch.testing.assert_close(compiled(X), X.sin())
    compiler.allow.set()
    assert compiled.wait()
    assert how(compiled) == ["inductor"]


def test_threads_replay_while_one_of_them_compares(compiler):
    compiled = tl.compile(torch.sin, wait=False)
    compiled(X)
    compiled.wait()
    inside, leave = threading.Event(), threading.Event()

    def hold(results):
        inside.set()
        assert leave.wait(60)
        return results

    compiler.changed = hold
    first = threading.Thread(target=compiled, args=(X,))
    first.start()
    assert inside.wait(60)
    compiler.changed = lambda results: results
    torch.testing.assert_close(compiled(X), X.sin())
    assert len(compiler.ran) == 1
    leave.set()
    first.join()
    compiled(X)
    assert len(compiler.ran) == 2


def test_many_threads_call_during_the_switch(compiler):
    compiler.allow.clear()
    compiled = tl.compile(tl.grad(lambda x: x.sin().sum()), wait=False)
    wrong, stop = [], threading.Event()

    def call(i):
        x = torch.full((3,), float(i))
        while not stop.is_set():
            if not torch.allclose(compiled(x), x.cos()):
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    compiler.allow.set()
    assert compiler.started.wait(60) and compiled.wait()
    compiled(X)
    stop.set()
    for thread in threads:
        thread.join()
    assert (wrong, len(compiler.graphs)) == ([], 1)


def test_many_functions_are_compiled(compiler):
    functions = [tl.compile(lambda x, i=i: x * i, wait=False) for i in range(20)]
    for i, each in enumerate(functions):
        torch.testing.assert_close(each(X), X * i)
    for i, each in enumerate(functions):
        assert each.wait()
        torch.testing.assert_close(each(X), X * i)
        assert how(each) == ["inductor"]
    assert len(compiler.graphs) == 20


def test_dropped_functions_are_not_compiled(compiler):
    compiler.allow.clear()
    kept, started, queued = (tl.compile(lambda x, i=i: x * i, wait=False) for i in (1, 2, 3))
    started(X)
    assert compiler.started.wait(60)
    queued(X)
    kept(X)
    gone = [weakref.ref(started), weakref.ref(queued)]
    del started, queued
    gc.collect()
    assert [each() for each in gone] == [None, None]
    compiler.allow.set()
    assert kept.wait()
    assert len(compiler.graphs) == 2


def test_gradients_across_the_switch(compiler):
    """Forward and backward switch separately; what one has saved, the other can read."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    expected = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    compiled = tl.compile(lambda x: net(x).square().sum(), wait=False)

    def check(loss):
        found = torch.autograd.grad(loss, [*net.parameters()])
        torch.testing.assert_close(found, expected)

    before = [compiled(x) for _ in range(4)]
    check(before[0])  # the backward's compilation starts here
    assert compiled.wait()
    after = [compiled(x) for _ in range(3)]  # the forward is Inductor's code
    check(before[1])  # replayed forward, compiled backward: compared
    check(before[2])
    for loss in after:
        check(loss)
    check(before[3])
    assert how(compiled) == ["inductor"]
    assert len(compiler.graphs) == 2
    assert {*map(id, compiler.ran)} == {*map(id, compiler.graphs)}


def test_second_derivatives_are_waited_for(compiler):
    compiled = tl.compile(lambda x: x.sin().sum(), wait=False)
    for _ in range(2):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -X.sin())
        assert compiled.wait()
    assert not background._in_flight


def test_random_numbers_go_on_across_the_switch(compiler):
    f = lambda x: nn.functional.dropout(x, 0.5)  # noqa: E731
    torch.manual_seed(0)
    expected = [f(torch.ones(8)) for _ in range(4)]
    compiled = tl.compile(f, wait=False)
    torch.manual_seed(0)
    for one in expected:
        torch.testing.assert_close(compiled(torch.ones(8)), one)
        compiled.wait()
    assert how(compiled) == ["inductor"]


def test_writes_happen_once_across_the_switch(compiler):
    compiled, x = tl.compile(lambda x: x.add_(1), wait=False), torch.zeros(2)
    for count in range(1, 5):
        compiled(x)
        compiled.wait()
        assert x.tolist() == [count] * 2


def test_symbolic_sizes_are_compiled_once_for_all(compiler):
    compiled = tl.compile(lambda x: x.sin() * 2, dynamic=True, wait=False)
    for size in (3, 4, 5, 6):
        x = torch.ones(size)
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        assert compiled.wait()
        torch.testing.assert_close(compiled(x), x.sin() * 2)
    assert how(compiled) == ["inductor", "inductor"]
    assert len(compiler.graphs) == 2


def test_the_environment_makes_the_first_call_wait(compiler, monkeypatch):
    monkeypatch.setenv("TORCHLAYERS_COMPILE_WAIT", "1")
    compiled = tl.compile(torch.sin)
    compiled(X)
    assert (how(compiled), compiler.threads) == (["inductor"], {threading.current_thread()})
    monkeypatch.setenv("TORCHLAYERS_COMPILE_WAIT", "0")
    compiler.allow.clear()
    later = tl.compile(torch.cos)
    later(X)
    assert how(later) == ["replay, until compiled"]


@pytest.mark.parametrize("why", ["deterministic algorithms", "several ranks"])
def test_the_first_call_waits_where_rounding_must_not_change(compiler, monkeypatch, why):
    monkeypatch.delenv("TORCHLAYERS_COMPILE_WAIT", raising=False)
    if why == "several ranks":
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    else:
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    compiled = tl.compile(torch.sin)
    compiled(X)
    assert (how(compiled), compiler.threads) == (["inductor"], {threading.current_thread()})


def test_copies_have_the_setting(compiler):
    import copy

    compiler.allow.clear()
    compiled = copy.copy(tl.compile(torch.sin, wait=False))
    compiled(X)
    assert how(compiled) == ["replay, until compiled"]


@pytest.mark.parametrize("backend", ["inductor", "replay"])
def test_nothing_warns(compiler, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = tl.compile(torch.sin, backend=backend, wait=False)
        for _ in range(3):
            compiled(X)
            compiled.wait()


FORK = """
import os, threading, torch, torchlayers as tl
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.graph_description import NotDescribableError
from torchlayers.compiler.runtime import background
from torchlayers.fx.program import replay

allow, started, compiled_in = threading.Event(), threading.Event(), []

def compile_graph(graph, threads, options=None):
    started.set()
    allow.wait()
    compiled_in.append(os.getpid())
    return lambda tensors: graph(*tensors)

def cannot_be_sent(*_):
    raise NotDescribableError

inductor.compile_graph, background.job_of = compile_graph, cannot_be_sent
f, x = tl.compile(torch.sin, wait=False), torch.ones(3)
f(x)
started.wait()
child = os.fork()
allow.set()
for _ in range(2):
    torch.testing.assert_close(f(x), x.sin())
    assert f.wait()
assert compiled_in == [os.getpid()], compiled_in
assert [each.how for each in f.report().signatures] == ["inductor"]
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.full  # compiles twice, 9 s
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_compiles_again_what_was_in_flight():
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr


def test_a_replayed_forward_saves_in_the_layout_of_the_capture():
    """Inductor's backward reads memory by the strides of the capture; kernels may return others."""
    graph = tl.make_graph(lambda x: x.sin().exp())(torch.ones(2, 3))
    sine = next(node for node in graph.graph.nodes if node.op == "call_function")
    sine.meta["val"] = sine.meta["val"].new_empty_strided((2, 3), (1, 2))
    graph.graph.output_node().args = ([sine],)
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    for laid_out, strides in (((), (3, 1)), ([sine], (1, 2))):
        (saved,) = replay(graph, laid_out)([x])
        assert saved.stride() == strides
        torch.testing.assert_close(saved, x.sin())


def test_the_backend_that_waiting_replaced_is_unknown():
    with pytest.raises(tl.errors.TransformError, match="Available backends: 'inductor', 'replay'"):
        tl.compile(torch.sin, backend="auto")
