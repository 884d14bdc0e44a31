"""Functions compiled by Inductor: few and small, since each takes seconds."""

import errno
import signal
import threading
import time
import warnings

import pytest
import torch
from torch import nn
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

import torchlayers as tl
from tests.compiler.hidden_runs import counted, hidden_runs
from tests.support.torch_reports import POINTS, REPORTED
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.graph_description import NotDescribableError
from torchlayers.compiler.runtime import backends, background


def how(compiled):
    return [entry.how for entry in compiled.report().signatures]


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("name", REPORTED)
def test_transforms_that_torch_compile_gets_wrong(name):
    f, x = REPORTED[name]
    compiled = tl.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(compiled(x), f(x))
    torch.testing.assert_close(compiled(x), tl.compile(f, backend="replay")(x))
    assert how(compiled) == ["inductor"]


def test_a_compiled_function_inside_jacrev():
    """pytorch#154036: torch.compile returns a result of another shape."""
    f = lambda x: x.sin().outer(x)  # noqa: E731
    torch.testing.assert_close(tl.jacrev(tl.compile(f))(POINTS[0]), tl.jacrev(f)(POINTS[0]))


@pytest.mark.sweep
def test_training_with_dropout_and_batch_norm():
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        for _ in range(2)
    ]
    nets[1].load_state_dict(nets[0].state_dict())
    compiled = tl.compile(nets[0])
    for net, f in zip(nets, [compiled, nets[1]], strict=True):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            f(POINTS).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(nets[0].state_dict(), nets[1].state_dict())
    assert how(compiled) == ["inductor"]


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_rounding_passes_the_check(dtype):
    """Inductor's code does not round to half precision where the operators do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = tl.compile(lambda x: net(x).float().square().mean())
    x = torch.randn(16, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with torch.autocast("cpu", dtype):
            loss = compiled(x)
        gradients = torch.autograd.grad(loss, [*net.parameters()])
    assert how(compiled) == ["inductor"]
    exact = torch.autograd.grad(net(x).square().mean(), [*net.parameters()])
    for one, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)


@pytest.mark.sweep
def test_second_derivatives():
    f = lambda x: (x @ x.t()).tanh().sum(0)  # noqa: E731

    def twice(f):
        x = POINTS.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), x)

    torch.testing.assert_close(twice(tl.compile(f)), twice(f))


def test_results_have_the_functions_strides():
    f = lambda x: (x.t() * 2, x.t().contiguous().sin(), x[1:])  # noqa: E731
    for one, other in zip(tl.compile(f)(POINTS), f(POINTS), strict=True):
        assert one.stride() == other.stride()


def test_inductors_table_of_dtypes_is_made_once(monkeypatch):
    made = []
    fill = DtypePropagationOpsHandler.__init__
    monkeypatch.setattr(
        DtypePropagationOpsHandler, "__init__", lambda self: (made.append(1), fill(self))[1]
    )
    tl.compile(lambda x: x.sin().exp().cos() * 0.75 + x)(POINTS)
    assert len(made) == 1
    DtypePropagationOpsHandler()
    assert len(made) == 2


# With a fake compiler in place of Inductor


@pytest.fixture
def compiler(monkeypatch):
    """Returns a function that sets the compiler of graphs."""

    def cannot_be_sent(*_):
        raise NotDescribableError

    def set_to(function):
        monkeypatch.setattr(inductor, "compile_graph", lambda graph, *_: function(graph))
        monkeypatch.setattr(background, "job_of", cannot_be_sent)

    return set_to


def as_it_is(graph):
    return lambda tensors: graph(*tensors)


def test_wrong_code_is_found_and_replayed(compiler):
    compiler(lambda graph: lambda tensors: [2 * result for result in graph(*tensors)])
    compiled = tl.compile(lambda x: x.sin())
    with pytest.warns(UserWarning, match="result 0 is off by 0.8.* where its largest .* is 0.8"):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin())
    torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin())
    assert how(compiled) == [
        "replay (inductor's result 0 is off by 0.841 where its largest entry is 0.841)"
    ]


def test_code_that_raises_is_replayed(compiler):
    def raises(graph):
        def run(tensors):
            tensors[0].fill_(7)
            raise RuntimeError("view size\nis not compatible")

        return run

    compiler(raises)
    compiled, x = tl.compile(lambda x: x.add_(1)), torch.ones(2)
    with pytest.warns(UserWarning, match="incorrectly: result is missing: RuntimeError: view size"):
        compiled(x)
    assert x.tolist() == [2, 2]
    assert how(compiled) == ["replay (inductor's result is missing: RuntimeError: view size)"]


def test_wrong_code_that_writes_is_undone(compiler):
    def twice(graph):
        def run(tensors):
            graph(*tensors)
            return graph(*tensors)

        return run

    compiler(twice)
    x = torch.ones(2)
    with pytest.warns(UserWarning, match="incorrectly: result 0 is off by 1"):
        tl.compile(lambda x: x.add_(1))(x)
    assert x.tolist() == [2, 2]


def test_without_check_nothing_is_compared(compiler):
    compiler(lambda graph: lambda tensors: [2 * result for result in graph(*tensors)])
    assert tl.compile(lambda x: x + 1, check=False)(torch.ones(())) == 4


def test_rounding_passes_the_check(compiler):
    def rounded(graph):
        return lambda tensors: [result * (1 + 1e-6) + 1e-7 for result in graph(*tensors)]

    compiler(rounded)
    compiled = tl.compile(lambda x: x.sin())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.linspace(0, 1, 300))


def test_rounding_after_cancellation_passes_the_check(compiler):
    """The terms sum to 0, so that only rounding errors remain."""
    compiler(lambda graph: lambda tensors: [result + 0.01 for result in graph(*tensors)])
    compiled = tl.compile(lambda x: (x + 1e6) - 1e6 - x + x[0] - x[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.full((4,), 1e4))


@pytest.mark.parametrize(
    "error", [RuntimeError("no lowering"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_graph_that_fails_to_compile_is_replayed(compiler, error):
    def fails(graph):
        raise error

    compiler(fails)
    compiled = tl.compile(lambda x: x + 1)
    with pytest.warns(UserWarning, match=rf"did not compile .* \({type(error).__name__}: "):
        assert compiled(torch.ones(())) == 2
    assert compiled(torch.ones(())) == 2
    assert how(compiled)[0].startswith(f"replay ({type(error).__name__}: ")


@pytest.mark.parametrize("wait", [True, False])
def test_full_disk_is_tried_again_later(compiler, monkeypatch, wait):
    room, tried = threading.Event(), []

    def compile_in_room(graph):
        tried.append(graph)
        if not room.is_set():
            raise RuntimeError("CppCompileError") from OSError(
                errno.ENOSPC, "No space left on device"
            )
        return lambda tensors: graph(*tensors)

    compiler(compile_in_room)
    monkeypatch.setattr(backends, "_WAIT", 0.3)
    compiled = tl.compile(lambda x: x + 1, wait=wait)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.ones(()))
        called_until(compiled, lambda: how(compiled)[0].startswith("replay (RuntimeError"))
        assert len(tried) == 1
        room.set()
        called_until(compiled, lambda: how(compiled) == ["inductor"])
    assert "Compilation will be retried later, when there may be space" in str(caught[-1].message)
    assert len(tried) == 2


def called_until(compiled, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        assert compiled(torch.ones(())) == 2


def test_missing_compiler_warns_once(compiler):
    def fails(graph):
        raise inductor.NoCompilerError

    compiler(fails)
    inductor.warn_no_compiler.cache_clear()
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler") as caught:
        for f in (torch.sin, torch.cos):
            compiled = tl.compile(f)
            torch.testing.assert_close(compiled(torch.ones(2)), f(torch.ones(2)))
    assert len(caught) == 1
    assert how(compiled) == ["replay (no C++ compiler)"]


def test_missing_compiler_is_recognized_by_inductors_error():
    inductor.warn_no_compiler.cache_clear()
    compiled = tl.compile(lambda x: x.sin().cos().sin() + 3.25)
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("/nowhere/to/be/found",)})
    with nowhere, pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        compiled(torch.ones(7))


@pytest.mark.parametrize("where", ["recording", "compiling", "the first call"])
def test_the_call_after_an_interrupted_one_works(compiler, where):
    step, runs = hidden_runs()

    def interrupt(here):
        if here == where:
            step()
            if runs() == 1:
                signal.raise_signal(signal.SIGINT)

    def f(x):
        interrupt("recording")
        return tl.vmap(torch.sin)(x)

    def compile_graph(graph):
        interrupt("compiling")

        def run(tensors):
            interrupt("the first call")
            return graph(*tensors)

        return run

    compiler(compile_graph)
    compiled = tl.compile(f)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(3))
    assert tl.current_stack() == ()
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin())
    assert how(compiled) == ["inductor"]


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_threads_that_call_first_at_once_compile_once(compiler, backend):
    compiled_graphs = []

    def compile_graph(graph):
        compiled_graphs.append(graph)
        return as_it_is(graph)

    f = counted(tl.grad(lambda x: x.sin().sum()))
    compiler(compile_graph)
    compiled = tl.compile(f, backend=backend)
    start, results = threading.Barrier(16), [None] * 16

    def call(i):
        start.wait()
        results[i] = compiled(torch.full((3,), float(i)))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        torch.testing.assert_close(result, torch.full((3,), float(i)).cos())
    assert f.count == 1
    assert len(compiled_graphs) <= (backend != "replay")


@pytest.mark.full
def test_threads_compile_different_functions():
    """Inductor traces too, which torch can't do on two threads at a time."""
    x, results = torch.randn(3, 5), {}

    def call(i):
        def f(x):
            return tl.vmap(tl.hessian(lambda y: (y.sin() * y.roll(i)).sum()))(x) * i

        try:
            results[i] = tl.compile(f)(x), f(x)
        except Exception as error:
            results[i] = error, None

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for compiled, expected in results.values():
        torch.testing.assert_close(compiled, expected)
