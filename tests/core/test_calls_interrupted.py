"""Whatever interrupts a call of a transform, at any point, stack and modes are restored."""

import contextlib
import signal
import threading

import pytest
import torch
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import ambient, assert_same

X = torch.linspace(0.5, 1.5, 3)


class Pair:
    """A pytree that runs the given actions when it is flattened or unflattened."""

    def __init__(self, x, y, at=None):
        self.x, self.y, self.at = x, y, at or {}


STEPS = ("flatten", "unflatten")


def _flatten(pair):
    pair.at.get("flatten", lambda: None)()
    return [pair.x, pair.y], pair.at


def _unflatten(leaves, at):
    at.get("unflatten", lambda: None)()
    return Pair(*leaves, at)


pytree.register_pytree_node(Pair, _flatten, _unflatten)


def total(pair):
    return (pair.x * pair.y).sum()


def swapped(pair):
    return Pair(pair.y * pair.x, pair.x, pair.at)


def vjp(f, pair):
    output, vjp_fn = tl.vjp(f, pair)
    return output, vjp_fn(output)


# Each calls the function, whose argument and result are pairs.
CALLS = {
    "vmap": lambda f, pair: tl.vmap(f)(pair),
    "vmap, in_dims and out_dims": lambda f, pair: tl.vmap(lambda p: (f(p),), (0,), (0,))(pair),
    "vmap in chunks": lambda f, pair: tl.vmap(f, chunk_size=2)(pair),
    "grad": lambda f, pair: tl.grad(lambda p: total(f(p)))(pair),
    "grad, not chosen": lambda f, pair: tl.grad(lambda x, p: (f(p).x * x).sum())(X, pair),
    "grad, by keyword": lambda f, pair: tl.grad(lambda x, p: (f(p).x * x).sum())(X, p=pair),
    "grad, aux": lambda f, pair: tl.grad(lambda x: (x.sum(), f(pair)), has_aux=True)(X),
    "vjp": vjp,
    "vjp, aux": lambda f, pair: tl.vjp(lambda x: (x, f(pair)), X, has_aux=True)[2],
    "jvp": lambda f, pair: tl.jvp(f, (pair,), (pair,)),
    "jvp, aux": lambda f, pair: tl.jvp(lambda x: (x, f(pair)), (X,), (X,), has_aux=True),
    "jacrev": lambda f, pair: tl.jacrev(f)(pair),
    "jacfwd": lambda f, pair: tl.jacfwd(f)(pair),
    "jacfwd, not chosen": lambda f, pair: tl.jacfwd(lambda x, p: f(p).x * x)(X, pair),
    "vmap of grad": lambda f, pair: tl.vmap(tl.grad(lambda p: total(f(p))))(pair),
    "functionalize": lambda f, pair: tl.functionalize(f)(pair),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def times(call, step):
    """How many times the call reaches this step of the pair's."""
    count = 0

    def counting():
        nonlocal count
        count += 1

    call(swapped, Pair(X, X + 1, {step: counting}))
    return count


@pytest.mark.parametrize("step", STEPS)
@calls
def test_an_exception_at_any_step_of_a_users_pytree_comes_through(call, step):
    before = ambient()
    for last in range(times(call, step)):
        raised = ZeroDivisionError(last)
        remaining = iter(range(last))

        def fails(remaining=remaining, raised=raised):
            if next(remaining, None) is None:
                raise raised

        with pytest.raises(ZeroDivisionError) as caught:
            call(swapped, Pair(X, X + 1, {step: fails}))
        assert caught.value is raised
        assert ambient() == before
        assert tl.current_stack() == ()
    assert times(call, step)


@pytest.mark.parametrize("step", STEPS)
@calls
def test_ctrl_c_at_any_step_comes_through(call, step):
    before = ambient()
    interrupt = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        call(swapped, Pair(X, X + 1, {step: interrupt}))
    assert ambient() == before
    with pytest.raises(KeyboardInterrupt):
        call(lambda pair: interrupt(), Pair(X, X + 1))
    assert ambient() == before
    assert times(call, step)


@calls
def test_a_users_pytree_may_call_transforms_itself(call):
    def transforms():
        tl.vmap(tl.grad(lambda x: (x * x).sum()))(torch.ones(2, 2))

    before = ambient()
    wanted = call(swapped, Pair(X, X + 1))
    found = call(swapped, Pair(X, X + 1, dict.fromkeys(STEPS, transforms)))
    assert_same(pytree.tree_leaves(found), pytree.tree_leaves(wanted))
    assert ambient() == before


def test_a_function_may_call_its_own_transform():
    def power(x, n):
        return x if n == 0 else x * tl.grad(power)(x, n - 1) + power(x, n - 1)

    def expected(n):  # polynomial coefficients, lowest first
        if n == 0:
            return [0.0, 1.0]
        below = expected(n - 1)
        return [(i + 1) * coefficient for i, coefficient in enumerate(below)]

    before = ambient()
    x = torch.tensor(2.0)
    for n in range(5):
        value = sum(c * x**i for i, c in enumerate(expected(n)))
        torch.testing.assert_close(power(x, n), value)
    assert ambient() == before


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: tl.vmap(f)(X),
        lambda f: tl.grad(f)(X[0]),
        lambda f: tl.jvp(f, (X,), (X,)),
        lambda f: tl.vjp(f, X),
    ],
)
def test_infinite_recursion_restores_the_state(transform):
    before = ambient()
    with pytest.raises(RecursionError):

        def endless(x):
            return transform(endless)

        transform(endless)
    assert ambient() == before
    assert tl.current_stack() == ()


def test_vjp_caches_the_cotangent_structures():
    x, y = torch.ones(2), torch.full((2,), 3.0)
    argument = {"x": [x], "y": y}
    output, vjp_fn = tl.vjp(lambda p: {"xy": [p["x"][0] * p["y"]], "y": p["y"]}, argument)
    argument["x"].append(y)
    del argument["y"]
    output["xy"].clear()
    output["z"] = x
    cotangent = {"xy": [x], "y": x}
    assert_same(vjp_fn(cotangent), ({"x": [y], "y": x + 1},))
    with pytest.raises(RuntimeError, match="must have the structure of the output"):
        vjp_fn(output)


CHANGING = {
    "vmap": lambda f, trees: tl.vmap(f)(trees),
    "grad": lambda f, trees: tl.grad(lambda p: f(p)[0].sum())(trees),
    "vjp": lambda f, trees: tl.vjp(f, trees)[1]([X, X]),
    "jvp": lambda f, trees: tl.jvp(f, (trees,), ([X, X],)),
}


@pytest.mark.parametrize("call", CHANGING.values(), ids=CHANGING)
def test_function_may_mutate_its_list_argument(call):
    def changes(trees, values):
        trees.append(X)
        trees[0] = None
        return [values[0] * values[1], values[1]]

    wanted = call(lambda values: [values[0] * values[1], values[1]], [X, X + 1])
    trees = [X, X + 1]
    assert_same(call(lambda values: changes(trees, values), trees), wanted)


def test_dict_cotangents_match_by_keys_and_order():
    f = lambda p: {1: p * p, "b": p}  # noqa: E731
    _, vjp_fn = tl.vjp(f, X)
    assert_same(vjp_fn({1: X, "b": X}), (2 * X * X + X,))
    assert_same(vjp_fn({1.0: X, "b": X}), (2 * X * X + X,))  # equal as Python compares them
    for other in ({"b": X, 1: X}, {2: X, "b": X}, {1: X}, [X, X], (X, X), X):
        with pytest.raises(RuntimeError, match="must have the structure of the output"):
            vjp_fn(other)


def test_a_vjp_is_pulled_back_on_threads_at_once():
    vjp_fn = tl.vjp(lambda p: [p[0].sin() * p[1], {"y": p[1]}], [X, X + 1])[1]
    cotangents = [X, {"y": X}]
    wanted = vjp_fn(cotangents)
    found = [None] * 4

    def work(i):
        for _ in range(50):
            found[i] = vjp_fn(cotangents)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradients in found:
        assert_same(gradients, wanted)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_of_a_backward_comes_through(error):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            raise error("mine")

    before = ambient()
    for call in (
        lambda: tl.grad(lambda x: Fails.apply(x).sum())(X),
        lambda: tl.vjp(Fails.apply, X)[1](X),
        lambda: tl.jacrev(Fails.apply)(X),
    ):
        with contextlib.suppress(error):
            call()
            pytest.fail("nothing was raised")
        assert ambient() == before
