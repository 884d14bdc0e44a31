"""Control flow combined with other features: checkpoints, hooks, threads, ensembles, errors."""

import contextlib
import functools
import threading

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from torchlayers import random

F64 = {"dtype": torch.float64}
torch.manual_seed(0)
W = torch.randn(3, 3, **F64)
X = torch.randn(5, 3, **F64)
X[:, 0] = torch.tensor([1.0, 0.5, -0.3, 2.0, -1.0])
KEY = random.key(0)

branching = pytest.mark.parametrize("batched", ["select", "gather"])
looping = pytest.mark.parametrize("batched", ["hold", "drop"])

CHECKPOINTS = {
    "ours": tl.checkpoint,
    "torch's": lambda f: lambda *xs: torch_checkpoint(f, *xs, use_reentrant=False),
    "reentrant": lambda f: lambda *xs: torch_checkpoint(f, *xs, use_reentrant=True),
}
checkpoints = pytest.mark.parametrize("wrap", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())


def slope(f):
    return tl.grad(lambda x: f(x).sum())


def looped(f):
    return lambda xs: torch.stack([f(x) for x in xs])


def check(f, plain):
    """Compares values, first and second derivatives: grad inside and outside vmap, and autograd."""
    torch.testing.assert_close(tl.vmap(f)(X), looped(plain)(X))
    expected = looped(slope(plain))(X)
    torch.testing.assert_close(tl.vmap(slope(f))(X), expected)
    torch.testing.assert_close(slope(tl.vmap(f))(X), expected)
    x = X.clone().requires_grad_()
    tl.vmap(f)(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    twice = looped(slope(slope(plain)))(X)
    torch.testing.assert_close(tl.vmap(slope(slope(f)))(X), twice)


def checkpointed_sides(batched, wrap=tl.checkpoint):
    def f(x):
        y = x.exp()
        sides = (lambda: (W @ x * y).sin()), (lambda: (y.square() * x.sum() - x[0]).sqrt())
        return tl.cond(x[0] > 0, *map(wrap, sides), batched=batched)

    return f


def plain_loop(x):
    c = x
    while c.square().sum() < 20:
        c = c * 1.5 + x.sin()
    return c


def loop(batched, wrap=lambda f: f):
    return lambda x: tl.while_loop(
        lambda c: c.square().sum() < 20, wrap(lambda c: c * 1.5 + x.sin()), x, batched=batched
    )


@checkpoints
@branching
def test_checkpoints_inside_branches_capture_samples(batched, wrap):
    """Recomputation sees what the forward saw: only the samples that take the branch."""
    xs = torch.cat([X[:, :1], X[:, 1:].abs() + 1], 1)  # the root is defined where it is taken

    def plain(x):
        y = x.exp()
        return (W @ x * y).sin() if x[0] > 0 else (y.square() * x.sum() - x[0]).sqrt()

    f = checkpointed_sides(batched, wrap)
    expected = looped(slope(plain))(xs)
    torch.testing.assert_close(tl.vmap(slope(f))(xs), expected)
    torch.testing.assert_close(slope(tl.vmap(f))(xs), expected)


def slope_in_a_branch(wrap):
    def f(x):
        z = x.exp()

        def g(y):
            return (W @ x * y.sin() * z).sum()

        def inner():
            return tl.cond(x[1] > 0, lambda: slope(wrap(g))(x) * z, lambda: slope(wrap(g))(z))

        return tl.cond(x[0] > 0, inner, lambda: slope(wrap(g))(x * 2), batched="gather")

    return f


def pulled_back_in_a_branch(wrap):
    def f(x):
        z = x.exp()
        _, vjp_fn = tl.vjp(wrap(lambda y: W @ x * y.sin() * z), x)
        return tl.cond(x[0] > 0, lambda: vjp_fn(x)[0] * z, lambda: x * 2, batched="gather")

    return f


@pytest.mark.parametrize("made", [slope_in_a_branch, pulled_back_in_a_branch])
@pytest.mark.parametrize("around", [contextlib.nullcontext, lambda: X.device])
def test_checkpoints_pulled_back_inside_branches(made, around):
    """Recomputation sees the samples of the forward, not those of the branch it is run from."""
    with around():
        expected = looped(made(lambda f: f))(X)
        torch.testing.assert_close(tl.vmap(made(tl.checkpoint))(X), expected)


@checkpoints
@looping
def test_checkpointed_bodies_capture_samples(batched, wrap):
    check(loop(batched, wrap), plain_loop)


@checkpoints
@looping
def test_checkpoints_around_loops(batched, wrap):
    check(wrap(loop(batched)), plain_loop)


@checkpoints
def test_checkpointed_steps_capture_samples(wrap):
    def plain(x):
        c = x
        for a in x:
            c = c * a + x
        return c

    check(lambda x: tl.scan(wrap(lambda c, a: (c * a + x, None)), x, x)[0], plain)


@checkpoints
def test_checkpoints_in_a_branch_of_a_branch(wrap):
    def plain(x):
        return ((x * x.sum()).sin() if x.sum() > 0 else x.exp()) if x[0] > 0 else x.cos()

    def f(x):
        def one():
            return tl.cond(x.sum() > 0, wrap(lambda: (x * x.sum()).sin()), lambda: x.exp())

        return tl.cond(x[0] > 0, one, lambda: x.cos())

    check(f, plain)


def test_a_checkpointed_scan_of_branches():
    def f(x):
        def step(c, a):
            return tl.cond(a > 0, lambda: c * a + x, lambda: c.sin()), c.sum()

        return tl.scan(step, x, x, checkpoint=2)[1]

    def plain(x):
        c, ys = x, []
        for a in x:
            ys.append(c.sum())
            c = c * a + x if a > 0 else c.sin()
        return torch.stack(ys)

    check(f, plain)


@looping
def test_hooks_of_saved_tensors(batched):
    x = X.clone().requires_grad_()
    with save_on_cpu():
        y = tl.vmap(loop(batched))(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, looped(slope(plain_loop))(X))


@looping
def test_linearize(batched):
    """The number of trips depends on the primal, not on the tangent."""
    f = tl.vmap(loop(batched))
    value, pushed = tl.linearize(f, X)
    torch.testing.assert_close(value, looped(plain_loop)(X))
    torch.testing.assert_close(pushed(X.cos()), tl.jvp(f, (X,), (X.cos(),))[1])


def smooth(y):
    return (W @ y).sin()


INSIDE = {
    "grad": lambda library, x: library.grad(lambda y: smooth(y).sum())(x),
    "vjp": lambda library, x: library.vjp(smooth, x)[1](x)[0],
    "jvp": lambda library, x: library.jvp(smooth, (x,), (x,))[1],
    "vmap": lambda library, x: library.vmap(lambda a: a * x.sum())(x),
    "hessian": lambda library, x: library.hessian(lambda y: smooth(y).sum())(x).sum(0),
}


@branching
@pytest.mark.parametrize("library", [tl, torch.func], ids=["ours", "torch.func"])
@pytest.mark.parametrize("kind", INSIDE)
def test_transforms_of_tensors_captured_by_a_branch(kind, library, batched):
    def f(x):
        return tl.cond(
            x[0] > 0, lambda: INSIDE[kind](library, x), lambda: x * x.sum(), batched=batched
        )

    def plain(x):
        return INSIDE[kind](tl, x) if x[0] > 0 else x * x.sum()

    torch.testing.assert_close(tl.vmap(f)(X), looped(plain)(X))
    torch.testing.assert_close(tl.vmap(slope(f))(X), looped(slope(plain))(X))


@looping
def test_carry_of_mixed_types(batched):
    def f(x):
        def body(carry):
            y, nothing, i, flag, k, d = carry
            return y * 1.3 + 0.1, nothing, i + 1, ~flag, k + 2, {"d": [d["d"][0] + y.sum()]}

        flag, k = torch.tensor(True), torch.zeros((), dtype=torch.int32)
        init = x, None, 0, flag, k, {"d": [x.sum()]}
        y, _, i, flag, k, d = tl.while_loop(
            lambda c: c[0].square().sum() < 20, body, init, batched=batched
        )
        return y * d["d"][0] + i + flag.double() + k

    def plain(x):
        y, i, d = x, 0, x.sum()
        while y.square().sum() < 20:
            y, i, d = y * 1.3 + 0.1, i + 1, d + y.sum()
        return y * d + i + float(i % 2 == 0) + 2 * i

    check(f, plain)


@branching
def test_an_empty_batch(batched):
    f = checkpointed_sides(batched)
    assert tl.vmap(slope(f))(X[:0]).shape == (0, 3)
    assert tl.vmap(slope(loop("drop")))(X[:0]).shape == (0, 3)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_exception_leaves_the_stack_and_modes_clean(error):
    trips = []

    def body(c):
        trips.append(c)
        if len(trips) % 2 == 0:
            raise error
        return c * 2

    def in_a_loop(x):
        return tl.while_loop(lambda c: c.square().sum() < 20 + x[0], body, x)

    def in_a_branch(x):
        return tl.cond(x[0] > 0, lambda: x, lambda: body(body(x)))

    modes = torch._C._len_torch_function_stack()
    for f in (in_a_loop, in_a_branch):
        with pytest.raises(error):
            tl.vmap(slope(f))(X)
        assert tl.current_stack() == ()
        assert torch._C._len_torch_function_stack() == modes


def test_program_may_continue_after_a_caught_error():
    def f(x):
        def fails():
            raise ZeroDivisionError

        def catches():
            with contextlib.suppress(ZeroDivisionError):
                tl.cond(x[1] > 0, fails, lambda: x)
            return smooth(x)

        return tl.cond(x[0] > 0, catches, lambda: x.square())

    check(f, lambda x: smooth(x) if x[0] > 0 else x.square())


def test_threads_branch_independently():
    found = [None] * 4

    def work(i):
        found[i] = tl.vmap(slope(loop("hold")))(X * (i + 1))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        torch.testing.assert_close(found[i], looped(slope(plain_loop))(X * (i + 1)))


def test_ensemble_members_branch_per_sample():
    nets = [torch.nn.Linear(3, 3, **F64) for _ in range(4)]
    params, _ = tl.stack_module_state(nets)

    def f(p, x):
        return tl.cond(
            p["bias"][0] + x[0] > 0,
            lambda: tl.functional_call(nets[0], p, (x,)),
            lambda: x * p["weight"].sum(),
        )

    def plain(net, x):
        return net(x) if net.bias[0] + x[0] > 0 else x * net.weight.sum()

    found = tl.vmap(tl.vmap(f, in_dims=(None, 0)), in_dims=(0, None))(params, X)
    alone = [looped(functools.partial(plain, net))(X) for net in nets]
    torch.testing.assert_close(found, torch.stack(alone))


def test_draws_by_keys_in_checkpointed_branches():
    def f(x):
        y = tl.cond(x[0] > 0, lambda: x * torch.rand(3, **F64), lambda: x + torch.randn(3, **F64))
        return y * torch.rand(3, **F64)

    keyed = tl.vmap(slope(tl.checkpoint(f)), randomness="keyed", key=KEY)(X)
    alone = [tl.seeded(slope(f), random.fold_in(KEY, i))(x) for i, x in enumerate(X)]
    torch.testing.assert_close(keyed, torch.stack(alone))
