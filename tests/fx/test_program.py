"""Captured graphs replayed by the C++ interpreter."""

import operator
import re
import signal
import threading
import time
import weakref

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.fx.results import results
from tests.support.calls import ambient, assert_same
from torchlayers.compiler.capture.record import record
from torchlayers.fx.program import replay

X = torch.linspace(0.5, 1.5, 6).reshape(2, 3)
Y = torch.linspace(-1, 1, 6).reshape(2, 3)
I = torch.tensor([1, 0, 1])  # noqa: E741


def program_of(f, *inputs):
    captured_graph = record(f, inputs)
    program = replay(captured_graph.graph)

    def run(*given):
        computed = program([*given, *captured_graph.captured])
        return results(captured_graph, given, computed)

    return run


def many(x):
    for _ in range(20):
        x = (x * 1.01).sin()
    return [x]


def in_place(x, y):
    z = x.clone()
    z[0] = y[1]
    z.mul_(x).t().add_(1)
    return [z, z[1:]]


PROGRAMS = {
    "a multiplication": lambda x, y: [x * y],
    "no operator": lambda x, y: [y, x, x],
    "a constant": lambda x, y: [torch.ones(3), 2, None, x],
    "of a number": lambda x, y: [x + 2, 1.5 * y, x**3],
    "read twice by one operator": lambda x, y: [x.sin() * x.sin(), (z := x * y) * z],
    "several results": lambda x, y: [*x.max(0), *torch.linalg.qr(y)],
    "one of several results": lambda x, y: [x.sort(1).indices],
    "a list of tensors": lambda x, y: [torch.cat([x, y, x]), torch.stack([x, y.cos()])],
    "a result that is a list": lambda x, y: [*x.split([1, 2], 1), x.unbind(0)[-1]],
    "optional tensors": lambda x, y: [x[:, I], x[I, :2], torch.nn.functional.layer_norm(y, (3,))],
    "views": lambda x, y: [x.t()[1:].reshape(-1), y.expand(2, 2, 3).diagonal()],
    "dtypes and layouts": lambda x, y: [
        x.double(), x.to(torch.complex64), torch.ones(2, 3, dtype=torch.int8),
        x.reshape(1, 2, 3, 1).to(memory_format=torch.channels_last),
        torch.empty_strided((2, 3), (1, 2), dtype=torch.bfloat16).zero_(),
    ],
    "in-place": in_place,
    "out=": lambda x, y: [torch.mul(x, y, out=torch.empty(2, 3))],
    "random": lambda x, y: [torch.rand_like(x), y.bernoulli(0.5), torch.randperm(5)],
    "dropout": lambda x, y: [torch.nn.functional.dropout(x, 0.5, training=True)],
    "grad": lambda x, y: [tl.grad(lambda z: (z.exp() * y).sum())(x)],
    "vmap(grad)": lambda x, y: [tl.vmap(tl.grad(lambda z: z.softmax(0)[0]))(x)],
    "a chain": lambda x, y: many(x),
}  # fmt: skip
programs = pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_replay_equals_the_graph(f):
    captured_graph = record(f, (X, Y))
    torch.manual_seed(0)
    expected = captured_graph.graph(X, Y, *captured_graph.captured)
    torch.manual_seed(0)
    before = ambient()
    given = replay(captured_graph.graph)([X, Y, *captured_graph.captured])
    assert ambient() == before
    assert_same(given, [*expected])


@programs
def test_replay_equals_the_function(f):
    torch.manual_seed(0)
    expected = f(X, Y)
    program = program_of(f, X, Y)
    torch.manual_seed(0)
    torch.testing.assert_close(program(X, Y), expected)


def test_program_runs_on_other_values():
    program = program_of(lambda x, y: [x * y + x], X, Y)
    for i in range(5):
        torch.testing.assert_close(program(X * i, Y), [X * i * Y + X * i])


def test_wrong_number_of_inputs_is_rejected():
    program = replay(record(lambda x: [x.sin()], (X,)).graph)
    with pytest.raises(
        RuntimeError, match=r"torchlayers: the captured graph takes 1 inputs, got 2"
    ):
        program([X, X])
    for wrong in (lambda: program(X), lambda: program([X], x=X), lambda: program()):
        with pytest.raises(TypeError, match=r"torchlayers: a program takes its inputs as one list"):
            wrong()


# Operators implemented in Python, and nodes that only torch.fx has


@torch.library.custom_op("torchlayers_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_written_in_python():
    torch.testing.assert_close(program_of(lambda x: [twice(x.sin())], X)(Y), [Y.sin() * 2])


def test_a_higher_order_operator():
    def f(x):
        return [torch.cond(x.sum() > 3, lambda z: z.sin(), lambda z: z.cos() * 2, (x,))]

    graph = make_fx(f, tracing_mode="fake")(X)
    assert any(node.target is torch.ops.higher_order.cond for node in graph.graph.nodes)
    program = replay(graph)
    for x in (X, -X):
        torch.testing.assert_close(program([x]), f(x))


def test_functions_methods_and_modules():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x):
            values, places = torch.max(self.linear(x), dim=1)
            return [values.view(-1, 1) + self.linear.bias, places, x.shape[0] + 1]

    module = Module().requires_grad_(False)
    torch.testing.assert_close(replay(fx.symbolic_trace(module))([X]), module(X))


def test_sizes_that_are_symbols():
    def f(x):
        rows = x.shape[0]
        return [x.reshape(-1), x.new_ones(rows * 2, 3), x.sum(0) / rows, torch.cat([x, x])]

    program = replay(make_fx(f, tracing_mode="symbolic")(X))
    for x in (X, torch.cat([X, Y])):
        torch.testing.assert_close(program([x]), f(x))


# Autograd and the layers


def test_plain_autograd_differentiates_a_program():
    program = program_of(lambda x, y: [x.sin() * y], X, Y)
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(program(x, Y)[0].sum(), x)
    torch.testing.assert_close(gradient, X.cos() * Y)
    with torch.no_grad():
        assert not program(x, Y)[0].requires_grad


def test_a_program_inside_transforms():
    program = program_of(lambda x, y: [x.sin() * y], X, Y)
    hessian = tl.hessian(lambda x: program(x, Y)[0].sum())(X)
    torch.testing.assert_close(hessian, tl.hessian(lambda x: (x.sin() * Y).sum())(X))
    batch = torch.stack([X, Y])
    torch.testing.assert_close(tl.vmap(lambda x: program(x, Y)[0])(batch), batch.sin() * Y)


def test_a_mode_sees_the_operators():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    program = program_of(lambda x: [x.sin().cos()], X)
    with Mode():
        program(X)
    assert seen == [torch.ops.aten.sin.default, torch.ops.aten.cos.default]


def test_autocast_is_not_applied_again():
    program = program_of(lambda x, y: [x @ y.t()], X, Y)
    with torch.autocast("cpu", torch.bfloat16):
        assert program(X, Y)[0].dtype == torch.float32


def test_writes_to_inputs_are_seen_by_autograd():
    def f(x, y):
        x.view(-1).mul_(2)
        return [y.sum()]

    program = program_of(f, X.clone(), Y)
    x = X.clone()
    version = x._version
    program(x, Y)
    torch.testing.assert_close(x, X * 2)
    assert x._version == version + 1


def test_views_that_are_returned_are_views():
    x = X.clone()
    (view,) = program_of(lambda x: [x.t()[1:]], X)(x)
    assert view._base is x
    x.zero_()
    assert not view.any()


# Memory


def test_slots_are_reused():
    assert replay(record(many, (X,)).graph).num_slots == 1


def test_inputs_are_freed_after_a_run():
    program = program_of(lambda x: [x * 2], X)
    x = X.clone()
    program(x)
    reference = weakref.ref(x)
    del x
    assert reference() is None


arrays: list[weakref.ref] = []  # the memory of what tracked() returned
alive: list[int] = []  # how many of them there were when it was called


@torch.library.custom_op("torchlayers_test_program::tracked", mutates_args=())
def tracked(xs: list[torch.Tensor]) -> torch.Tensor:
    alive.append(sum(array() is not None for array in arrays))
    array = sum(x.numpy() for x in xs) + 1
    arrays.append(weakref.ref(array))
    return torch.from_numpy(array)


tracked.register_fake(lambda xs: torch.empty_like(xs[0]))


def test_values_are_freed_where_they_are_read_last():
    def f(x):
        total = tracked([tracked([x]) for _ in range(4)])
        return [tracked([total])]

    program = program_of(f, X)
    alive.clear()
    torch.testing.assert_close(program(X), [4 * X + 6])
    assert alive == [0, 1, 2, 3, 4, 1]


# Threads, recursion, exceptions


def test_one_program_on_many_threads():
    program = program_of(lambda x, y: [*many(x), x @ y.t()], X, Y)
    errors, start = [], threading.Barrier(8)

    def work(n):
        start.wait()
        try:
            for i in range(50):
                x = X + n + i
                torch.testing.assert_close(program(x, Y), [*many(x), x @ Y.t()])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def node(graph, function, *args):
    return graph.call_function(function, args)


def test_a_program_that_calls_itself():
    """Doubles x until its sum is 10 or more, recursively through a Python function."""

    def again(x):
        return program([x])[0] if x.sum() < 10 else x

    graph = fx.Graph()
    doubled = node(graph, torch.ops.aten.mul.Tensor, graph.placeholder("x"), 2)
    rest = node(graph, again, doubled)
    graph.output([node(graph, torch.ops.aten.sub.Tensor, rest, doubled)])
    program = replay(fx.GraphModule({}, graph))

    def expected(x):
        doubled = x * 2
        return (expected(doubled) if doubled.sum() < 10 else doubled) - doubled

    x = torch.ones(2)
    torch.testing.assert_close(program([x]), [expected(x)])


def test_an_error_names_the_operator_and_the_line():
    trace = [
        'File "/home/me/train.py", line 41, in loss\n    return sin(x) @ x',
        f'File "{torch.__file__}", line 7, in sin\n    pass',
    ]
    graph = record(lambda x: [x.sin() @ x], (torch.ones(2, 2),)).graph
    for mm in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        mm.meta["stack_trace"] = "\n".join(trace)
    program = replay(graph)
    where = "while replaying aten.mm.default, captured in train.py:41, `return sin(x) @ x`"
    for _ in range(3):
        with pytest.raises(RuntimeError, match=re.escape(where)):
            program([X])
    torch.testing.assert_close(program([torch.eye(2)]), [torch.eye(2).sin()])


def test_python_exception_is_raised_unchanged():
    class Unlike(Exception):
        pass

    def fail(x):
        if x.sum() > 0:
            raise Unlike("so")
        return x

    graph = fx.Graph()
    graph.output([node(graph, torch.sin, node(graph, fail, graph.placeholder("x")))])
    program = replay(fx.GraphModule({}, graph))
    for _ in range(3):
        with pytest.raises(Unlike, match="so"):
            program([X])
        torch.testing.assert_close(program([-X]), [torch.sin(-X)])


def test_errors_keep_their_kind():
    program = program_of(lambda x, i: [x.index_select(0, i)], X, torch.tensor([0]))
    with pytest.raises(IndexError, match=r"while replaying aten.index_select"):
        program(X, torch.tensor([7]))


@pytest.mark.sweep
def test_ctrl_c_interrupts_a_run():
    def f(x):
        for _ in range(3000):
            x = x @ x
        return [x]

    program = program_of(f, torch.zeros(8, 8))
    x = torch.zeros(512, 512)
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        program(x)
    assert time.perf_counter() - begin < 3
    torch.testing.assert_close(program(torch.zeros(8, 8)), [torch.zeros(8, 8)])


@pytest.mark.sweep
def test_other_threads_run_during_a_replay():
    def f(x):
        for _ in range(200):
            x = x @ x
        return [x]

    program = program_of(f, torch.zeros(8, 8))
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    program(torch.zeros(400, 400))
    done.set()
    thread.join()
    assert len(ticks) > 5


def test_getitem_of_a_python_result():
    graph = fx.Graph()
    pair = node(graph, lambda x: (x + 1, [x, 2]), graph.placeholder("x"))
    sum_, rest = (node(graph, operator.getitem, pair, i) for i in range(2))
    graph.output([sum_, *(node(graph, operator.getitem, rest, i) for i in range(2))])
    torch.testing.assert_close(replay(fx.GraphModule({}, graph))([X]), [X + 1, X, 2])
