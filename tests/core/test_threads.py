"""Threads, processes, generators and coroutines: each thread has its own layer stack."""

import asyncio
import concurrent.futures
import threading

import pytest
import torch
import torch.func
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, ambient
from torchlayers import _C

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

X = torch.tensor([0.5, 1.0, 2.0])


def second_derivatives(x, tf=tl):
    """6 x, through three layers."""
    return tf.vmap(lambda s: tf.jvp(tf.grad(lambda y: y**3), (s,), (torch.ones_like(s),))[1])(x)


def first_derivatives(x, tf=tl):
    """3 x**2, through two layers."""
    return tf.vmap(tf.grad(lambda y: y**3))(x)


def on_a_thread(action):
    """Runs action() on a new thread; returns its result or raises its exception."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


TRANSFORMS = {
    "grad": lambda tf, f, x: tf.grad(lambda y: f(y).sum())(x),
    "vjp": lambda tf, f, x: tf.vjp(f, x)[1](x)[0],
    "jvp": lambda tf, f, x: tf.jvp(f, (x,), (x,)),
    "vmap": lambda tf, f, x: tf.vmap(f)(x),
    "functionalize": lambda tf, f, x: tf.functionalize(f)(x),
}
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def test_a_pool_of_threads():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: second_derivatives(X + i), range(64)))
    for i, result in enumerate(results):
        torch.testing.assert_close(result, 6 * (X + i))


def test_threads_that_enter_and_leave_in_turns():
    """Each is inside its function while the other enters and leaves."""
    barrier = threading.Barrier(2, timeout=10)

    def work(transform):
        stacks = []

        def f(x):
            barrier.wait()
            stacks.append([layer.kind for layer in tl.current_stack()])
            barrier.wait()
            return x**3

        before = ambient()
        barrier.wait()  # forward AD's level is partly process-wide
        for _ in range(5):
            transform(tl, f, X)
        barrier.wait()
        return stacks, before == ambient()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(work, TRANSFORMS[name]) for name in ("grad", "jvp")}
        for name, job in jobs.items():
            assert job.result() == ([[name]] * 5, True)


@transforms
def test_a_transform_on_a_thread_started_inside_a_transform(transform):
    def call(tf):
        def f(x):
            return x * on_a_thread(lambda: second_derivatives(X, tf)).sum()

        return transform(tf, f, X)

    agree(call)


@pytest.mark.parametrize("name", ["grad", "vjp", "jvp", "functionalize"])
def test_on_another_thread_a_tensor_of_a_transform_is_a_constant(name):
    """The transform is not active there, so nothing is recorded."""

    def f(x):
        return x * on_a_thread(lambda: x.sin())

    result = agree(lambda tf: TRANSFORMS[name](tf, f, X))
    if name == "grad":
        torch.testing.assert_close(result, X.sin())


def test_on_another_thread_a_batched_tensor_is_refused():
    refused = r"batched by vmap \(level 1\) was used by .* which has ended or is another thread's"
    with pytest.raises(RuntimeError, match=refused):
        tl.vmap(lambda x: on_a_thread(lambda: x * 2))(X)
    assert tl.current_stack() == ()


# NOTE [Whose level]: another thread's level 1 is not this thread's level 1.
REFUSED = r"torchlayers: a tensor .*level 1|may have escaped"
outers = pytest.mark.parametrize("outer", ["grad", "jvp", "vmap"])


@outers
@pytest.mark.parametrize("inner", TRANSFORMS)
def test_a_transform_on_another_thread_refuses_this_threads_tensors(outer, inner):
    def f(x):
        return pytree.tree_leaves(on_a_thread(lambda: TRANSFORMS[inner](tl, torch.sin, x)))[0]

    with pytest.raises(RuntimeError, match=REFUSED):
        TRANSFORMS[outer](tl, f, torch.ones(2, 3))
    assert tl.current_stack() == ()


@outers
@pytest.mark.parametrize("inner", TRANSFORMS)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_function_on_another_thread_refuses_to_capture_this_threads_tensors(outer, inner, depth):
    def f(x):
        def captures(y):
            return x * y

        def work():
            nested = captures
            if depth:
                nested = lambda y: tl.jvp(captures, (y,), (y,))[0]  # noqa: E731
            return TRANSFORMS[inner](tl, nested, torch.ones(2, 3))

        return pytree.tree_leaves(on_a_thread(work))[0]

    with pytest.raises(RuntimeError, match=REFUSED):
        TRANSFORMS[outer](tl, f, torch.ones(2, 3))
    assert tl.current_stack() == ()


# Operators that combine tensors of two threads' vmaps of the same level and size: typed kernels,
# equally batched operands, a rule of ours, and torch's rule.
OPERATORS = {
    "typed": lambda x, y: x * y,
    "along a dimension": lambda x, y: x.sum(0) + y,
    "batched alike": lambda x, y: torch.heaviside(x, y),
    "a rule": lambda x, y: torch.cat([y, x]),
    "torch's rule": torch.linalg.cross,
    "in place": lambda x, y: y.clone().add_(x),
    "returned": lambda x, y: x,
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize(
    "made",
    [lambda x: x, torch.sin, lambda x: torch.linalg.cross(x, x.flip(0))],
    ids=["the argument", "sin", "cross"],
)
@pytest.mark.parametrize("around", ["vmap", "vmap(grad)"])
def test_two_vmaps_of_one_level_and_size_are_told_apart(operator, made, around):
    """`made` by no operator, a rule of ours or torch's batching rule."""

    def f(x):
        kept = made(x)

        def g(y):
            return operator(kept, y)

        def work():
            if around == "vmap":
                return tl.vmap(g)(torch.ones(2, 3))
            return tl.vmap(tl.grad(lambda y: g(y).sum()))(torch.ones(2, 3))

        return on_a_thread(work)

    with pytest.raises(RuntimeError, match=r"torchlayers: a tensor batched by vmap \(level 1\)"):
        tl.vmap(f)(torch.ones(2, 3))
    assert tl.current_stack() == ()


def test_a_vjps_second_result_may_be_called_on_another_thread():
    _, pull = tl.vjp(lambda x: x**3, X)
    results = [on_a_thread(lambda: pull(X)[0]) for _ in range(3)]
    for result in [*results, pull(X)[0]]:
        torch.testing.assert_close(result, 3 * X**3)


def test_a_linear_map_may_be_called_on_another_thread():
    _, push = tl.linearize(lambda x: x**3, X)
    torch.testing.assert_close(on_a_thread(lambda: push(X)), 3 * X**3)


def test_an_exception_on_a_thread_leaves_nothing_behind_there():
    def fail(x):
        raise ZeroDivisionError

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = pool.submit(ambient).result()
        with pytest.raises(ZeroDivisionError):
            pool.submit(second_derivatives_of, fail).result()
        assert pool.submit(ambient).result() == before


def second_derivatives_of(f):
    return tl.vmap(lambda s: tl.jvp(tl.grad(f), (s,), (s,))[1])(X)


# torch.jit


def test_fork_inside_a_transform():
    def f(x):
        future = torch.jit.fork(lambda y: y * y.sin(), x)
        return torch.jit.wait(future) + x

    for transform in TRANSFORMS.values():
        agree(lambda tf, transform=transform: transform(tf, f, X))


def test_a_transform_inside_a_fork():
    result = torch.jit.wait(torch.jit.fork(second_derivatives, X))
    torch.testing.assert_close(result, 6 * X)


def test_scripted_fork_inside_a_transform():
    """A scripted fork runs on a thread of TorchScript's own pool."""

    @torch.jit.script
    def body(x: torch.Tensor):
        return x * x.sin()

    @torch.jit.script
    def f(x: torch.Tensor):
        future = torch.jit.fork(body, x)
        y = x * 2
        return torch.jit.wait(future) + y

    for transform in TRANSFORMS.values():
        agree(lambda tf, transform=transform: transform(tf, f, X))


# Generators and coroutines

ENTRIES = {
    "grad": _C.grad_entry,
    "jvp": _C.jvp_entry,
    "vmap": lambda: _C.vmap_entry(2, "error"),
    "functionalize": lambda: _C.functionalize_entry(True),
}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def suspended_in(entry):
    with entry():
        yield


@pytest.mark.parametrize("name", ["grad", "vmap"])
def test_a_generator_is_no_result(name):
    def f(x):
        yield x

    with pytest.raises((RuntimeError, ValueError), match=r"torchlayers: .* got generator"):
        getattr(tl, name)(f)(X)


def test_a_generator_started_inside_and_resumed_outside_goes_on_with_values():
    def call(tf):
        generators = []

        def f(x):
            def steps():
                y = x * 2
                yield y
                yield y * x

            generators.append(steps())
            next(generators[0])
            return x.sum()

        tf.grad(f)(X)
        return [value + 0 for value in generators[0]]

    (result,) = agree(call)
    assert torch.equal(result, X * 2 * X)


def test_a_generator_that_makes_layers_while_it_runs_may_be_resumed_anywhere():
    def steps():
        for i in range(4):
            yield first_derivatives(X + i)

    running = steps()
    results = [next(running), on_a_thread(lambda: next(running))]
    tl.vmap(lambda x: results.append(next(running)) or x)(X)
    results.append(next(running))
    for i, result in enumerate(results):
        torch.testing.assert_close(torch.func.debug_unwrap(result), 3 * (X + i) ** 2)


@pytest.mark.parametrize("around", ["grad", "jvp", "vmap"])
@entries
def test_a_generator_suspended_in_a_layer_is_reported_by_the_transform_around(entry, around):
    generators = []

    def f(x):
        generators.append(suspended_in(entry))
        next(generators[-1])
        return x * 2

    before = ambient()
    with pytest.raises(RuntimeError, match=rf"when {around} \(level 1\) was left, 1 layer\(s\)"):
        TRANSFORMS[around](tl, f, torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"\(level 2\) is being left on a thread .* suspend"):
        next(generators[0])
    assert ambient() == before


@entries
def test_a_generator_suspended_in_a_layer_can_not_be_resumed_on_another_thread(entry):
    before = ambient()
    generator = suspended_in(entry)
    with pytest.raises(RuntimeError, match=r"when vmap \(level 1\) was left"), ENTRIES["vmap"]():
        next(generator)
        with pytest.raises(RuntimeError, match=r"\(level 2\) is being left on a thread .* suspend"):
            on_a_thread(lambda: next(generator))
        assert [layer.level for layer in tl.current_stack()] == [1, 2]
    assert ambient() == before


def test_coroutines_that_transform_between_their_suspensions():
    async def work(i):
        await asyncio.sleep(0)
        result = second_derivatives(X + i)
        await asyncio.sleep(0)
        return result, tl.current_stack()

    async def all_of_them():
        return await asyncio.gather(*map(work, range(8)))

    for i, (result, stack) in enumerate(asyncio.run(all_of_them())):
        torch.testing.assert_close(result, 6 * (X + i))
        assert stack == ()


@transforms
def test_an_event_loop_inside_a_transform(transform):
    async def f(x):
        await asyncio.sleep(0)
        y = x * x
        await asyncio.sleep(0)
        return y * x

    agree(lambda tf: transform(tf, lambda x: asyncio.run(f(x)), X))


def test_a_coroutine_is_no_result():
    async def f(x):
        return x.sum()

    coroutines = []
    with pytest.raises(RuntimeError, match=r"torchlayers: grad: .* got coroutine"):
        tl.grad(lambda x: coroutines.append(f(x)) or coroutines[0])(X)
    coroutines[0].close()


def test_a_task_started_inside_a_transform_goes_on_with_values_after_it():
    async def inner(x):
        y = x * x
        await asyncio.sleep(0)
        return y * x, tl.current_stack()

    async def outer():
        tasks = []
        tl.grad(lambda x: tasks.append(asyncio.ensure_future(inner(x))) or x.sum())(X)
        return await tasks[0]

    result, stack = asyncio.run(outer())
    assert torch.equal(result + 0, X * X * X)
    assert stack == ()


@pytest.mark.parametrize("entry", [ENTRIES[name] for name in ("grad", "jvp", "vmap")])
def test_coroutines_suspended_in_layers_that_cross_are_reported(entry):
    """The first is left while the second, entered inside it, is suspended."""

    async def held(entered, leave):
        with entry():
            entered.set()
            await leave.wait()

    async def crossing():
        inside, both, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(held(inside, both))
        await inside.wait()
        second = asyncio.ensure_future(held(both, done))
        errors = await asyncio.gather(first, return_exceptions=True)
        done.set()
        return errors + await asyncio.gather(second, return_exceptions=True)

    before = ambient()
    first, second = asyncio.run(crossing())
    assert "were still on the stack" in str(first)
    assert "does not contain it" in str(second)
    assert ambient() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="device threads need a GPU")
def test_a_backward_on_a_gpus_own_thread():
    x = X.cuda()
    torch.testing.assert_close(second_derivatives(x), 6 * x)
    (gradient,) = tl.vjp(lambda y: y.cpu().cuda() ** 3, x)[1](torch.ones_like(x))
    torch.testing.assert_close(gradient, 3 * x**2)
