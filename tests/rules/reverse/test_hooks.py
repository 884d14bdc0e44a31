"""Hooks on tensors and nodes inside transforms: their effect on gradients, and when they run."""

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

import torchlayers as tl
from tests.support.calls import ambient, level_of
from tests.support.traced_steps import traced_steps

X = torch.tensor([0.5, -1.0, 1.5], dtype=torch.float64)
V = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
BATCH = torch.stack([X, V, X * V])
ONE = torch.ones((), dtype=torch.float64)


def who_pulled_back(call):
    with traced_steps() as events:
        result = call()
    return result, {event.op for event in events if event.step == "pull_back"}


def scaled(x):
    y = x.sin()
    y.register_hook(lambda g: 2 * g)
    return (y * x).sum()


def squared(x):
    y = x.sin()
    y.register_hook(lambda g: g**2)
    return (y * x).sum()


def with_tensors_of_the_function(x):
    y = x.sin()
    y.register_hook(lambda g: g * x.exp())
    return (y * x).sum()


def argument(x):
    x.register_hook(lambda g: 3 * g)
    return (x.sin() * x).sum()


def value(x):
    y = (x.sin() * x).sum()
    y.register_hook(lambda g: 5 * g)
    return y


def after_a_node(x):
    y = x.exp()
    y.grad_fn.register_hook(lambda inputs, outputs: (2 * inputs[0],))
    return (y * x).sum()


def after_a_node_with_its_cotangent(x):
    y = x.exp()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * outputs[0],))
    return (y * x).sum()


def before_a_node(x):
    y = x.exp()
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * outputs[0],))
    return (y * x).sum()


def view(x):
    y = x.exp()
    part = y[1:]
    part.register_hook(lambda g: 2 * g)
    return part.sum() + y.sum()


def written_later(x):
    y = x.sin()
    y.register_hook(lambda g: 2 * g)
    y.mul_(x)
    return y.sum()


def written_before(x):
    y = x.sin()
    y.mul_(x)
    y.register_hook(lambda g: g**2)
    return (y * x).sum()


def base_of_a_written_view(x):
    y = x.sin()
    y[1:].mul_(2)
    y.register_hook(lambda g: 3 * g)
    return (y * x).sum()


def one_of_several_results(x):
    head, tail = x.exp().split([1, 2])
    tail.register_hook(lambda g: 2 * g)
    head.register_hook(lambda g: None)  # it receives None
    return tail.sum()


def removed(x):
    y = x.sin()
    handle = y.register_hook(lambda g: 2 * g)
    y.register_hook(lambda g: 3 * g)
    handle.remove()
    return (y * x).sum()


def removes_itself(x):
    y = x.sin()
    handle = y.register_hook(lambda g: (handle.remove(), 2 * g)[1])
    return (y * x).sum()


def several_on_one(x):
    y = x.sin()
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 2)
    return (y * x).sum()


def with_a_transform(x):
    y = x.sin()
    y.register_hook(tl.grad(lambda g: (g**3).sum()))
    return (y * x).sum()


def with_a_transform_of_captured(x):
    y = x.sin()
    y.register_hook(lambda g: tl.vmap(lambda each: each * x.sum())(g))
    return (y * x).sum()


def with_torchs_own_node(x):
    y = x.exp()
    norm = torch.linalg.vector_norm(y)
    norm.register_hook(lambda g: 4 * g)
    y.register_hook(lambda g: 2 * g)
    return norm


def with_a_constant(x):
    y = x.exp()
    y.register_hook(lambda g: torch.ones(3, dtype=torch.float64))
    return torch.linalg.vector_norm(torch.cumsum(y, 0))


def accumulated(x):
    def hook(x):
        x.grad = x.grad * 5

    x.register_post_accumulate_grad_hook(hook)
    x.register_hook(lambda g: g + 1)
    return (x.sin() * x).sum()


def written_by_a_hook(x):
    y = x.sin()
    y.register_hook(lambda g: (g.mul_(2), None)[1])
    return (y * x.exp()).sum()


def normalized(x):
    """Uses a hook that would give another result for a whole batch."""
    y = x.exp()
    y.register_hook(lambda g: g * x.sin() / g.norm())
    return (y * x).sum()


def gradient(x):
    return x.cos() * x + x.sin()


# (a function with hooks, its expected gradient)
HOOKED = {
    "on a tensor": (scaled, lambda x: 2 * x.cos() * x + x.sin()),
    "that squares": (squared, lambda x: x**2 * x.cos() + x.sin()),
    "that reads a tensor": (
        with_tensors_of_the_function,
        lambda x: x * x.exp() * x.cos() + x.sin(),
    ),
    "on the argument": (argument, lambda x: 3 * gradient(x)),
    "on the value": (value, lambda x: 5 * gradient(x)),
    "after a node": (after_a_node, lambda x: 2 * x * x.exp() + x.exp()),
    "after a node, with its cotangent": (
        after_a_node_with_its_cotangent,
        lambda x: x * x * x.exp() + x.exp(),
    ),
    "before a node": (before_a_node, lambda x: x**2 * x.exp() + x.exp()),
    "on a view": (view, lambda x: x.exp() * torch.tensor([1.0, 3.0, 3.0])),
    "on a tensor that is written to": (written_later, lambda x: 2 * x * x.cos() + x.sin()),
    "on a tensor that was written to": (
        written_before,
        lambda x: x**2 * gradient(x) + x * x.sin(),
    ),
    "on a tensor of which a view was written to": (
        base_of_a_written_view,
        lambda x: torch.tensor([1.0, 2.0, 2.0]) * (3 * x.cos() * x + x.sin()),
    ),
    "on one of several results": (
        one_of_several_results,
        lambda x: x.exp() * torch.tensor([0.0, 2.0, 2.0]),
    ),
    "that was removed": (removed, lambda x: 3 * x.cos() * x + x.sin()),
    "that removes itself": (removes_itself, lambda x: 2 * x.cos() * x + x.sin()),
    "several on one tensor": (several_on_one, lambda x: 2 * (x + 1) * x.cos() + x.sin()),
    "that calls grad": (with_a_transform, lambda x: 3 * x**2 * x.cos() + x.sin()),
    "that calls vmap": (
        with_a_transform_of_captured,
        lambda x: x * x.sum() * x.cos() + x.sin(),
    ),
    "beside a node of torch's own": (
        with_torchs_own_node,
        lambda x: 8 * x.exp() ** 2 / x.exp().square().sum().sqrt(),
    ),
    "that returns a constant": (with_a_constant, lambda x: x.exp()),
    "after accumulation": (accumulated, lambda x: 5 * (gradient(x) + 1)),
    "that normalizes": (normalized, lambda x: x * x.sin() / x.norm() * x.exp() + x.exp()),
    "that writes to what it is given": (
        written_by_a_hook,
        lambda x: 2 * x.exp() * x.cos() + x.sin() * x.exp(),
    ),
}
hooked = pytest.mark.parametrize(("f", "expected"), HOOKED.values(), ids=HOOKED)


def jacobian(expected, x):
    """The Jacobian by plain autograd."""
    return torch.autograd.functional.jacobian(expected, x)


# (a nest of f, its expected result)
NESTS = {
    "grad": (lambda f: tl.grad(f)(X), lambda h: h(X)),
    "grad_and_value": (lambda f: tl.grad_and_value(f)(X)[0], lambda h: h(X)),
    "vjp": (lambda f: tl.vjp(f, X)[1](ONE)[0], lambda h: h(X)),
    "jacrev": (lambda f: tl.jacrev(f)(X), lambda h: h(X)),
    "grad(grad)": (
        lambda f: tl.grad(lambda x: (tl.grad(f)(x) * V).sum())(X),
        lambda h: V @ jacobian(h, X),
    ),
    "grad(vjp)": (
        lambda f: tl.grad(lambda x: (tl.vjp(f, x)[1](ONE)[0] * V).sum())(X),
        lambda h: V @ jacobian(h, X),
    ),
    "jvp(grad)": (
        lambda f: tl.jvp(tl.grad(f), (X,), (V,))[1],
        lambda h: jacobian(h, X) @ V,
    ),
    "vmap(grad)": (
        lambda f: tl.vmap(tl.grad(f))(BATCH),
        lambda h: torch.stack([h(x) for x in BATCH]),
    ),
    "vmap(vmap(grad))": (
        lambda f: tl.vmap(tl.vmap(tl.grad(f)))(BATCH[None])[0],
        lambda h: torch.stack([h(x) for x in BATCH]),
    ),
    "grad(vmap(grad))": (
        lambda f: tl.grad(lambda b: (tl.vmap(tl.grad(f))(b) * V).sum())(BATCH),
        lambda h: torch.stack([V @ jacobian(h, x) for x in BATCH]),
    ),
    "hessian": (lambda f: tl.hessian(f)(X), lambda h: jacobian(h, X)),
    "jacrev(grad)": (lambda f: tl.jacrev(tl.grad(f))(X), lambda h: jacobian(h, X)),
    "jacrev(grad), in chunks": (
        lambda f: tl.jacrev(tl.grad(f), chunk_size=2)(X),
        lambda h: jacobian(h, X),
    ),
    "autograd(grad)": (
        lambda f: torch.autograd.functional.jacobian(tl.grad(f), X),
        lambda h: jacobian(h, X),
    ),
}
nests = pytest.mark.parametrize(("nest", "of_gradient"), NESTS.values(), ids=NESTS)


@pytest.mark.sweep
@nests
@hooked
def test_hooks_change_gradients_in_our_own_pass(f, expected, nest, of_gradient):
    before = ambient()
    found, who = who_pulled_back(lambda: nest(f))
    assert ambient() == before
    torch.testing.assert_close(found, of_gradient(expected))
    assert who == {"torchlayers"}


# Nests in which the innermost level does not record: the hook is on a value recorded further out.
FURTHER_OUT = {
    "grad(vmap)": lambda f: tl.grad(lambda b: tl.vmap(f)(b).sum())(BATCH),
    "grad(vmap), of columns": lambda f: tl.grad(lambda b: tl.vmap(f, 1)(b).sum())(BATCH.T).T,
    "grad(vmap), in chunks": lambda f: tl.grad(lambda b: tl.vmap(f, chunk_size=2)(b).sum())(BATCH),
    "vjp(vmap)": lambda f: tl.vjp(tl.vmap(f), BATCH)[1](ONE.expand(3))[0],
    "jacrev(vmap)": lambda f: tl.jacrev(tl.vmap(f))(BATCH).diagonal().T,
    "grad(vmap(vmap))": lambda f: tl.grad(lambda b: tl.vmap(tl.vmap(f), 1)(b).sum())(
        BATCH[:, None]
    )[:, 0],
    "vmap(grad(vmap))": lambda f: tl.vmap(tl.grad(lambda b: tl.vmap(f)(b).sum()))(BATCH[None])[0],
    "autograd(vmap)": lambda f: torch.autograd.functional.vjp(tl.vmap(f), BATCH, ONE.expand(3))[1],
    "grad(jvp)": lambda f: tl.vmap(tl.grad(lambda x: tl.jvp(f, (x,), (V,))[0]))(BATCH),
    "jacrev(jvp)": lambda f: tl.vmap(tl.jacrev(lambda x: tl.jvp(f, (x,), (V,))[0]))(BATCH),
    "grad(vmap(jvp))": lambda f: tl.grad(
        lambda b: tl.vmap(lambda x: tl.jvp(f, (x,), (V,))[0])(b).sum()
    )(BATCH),
    "grad(jvp(vmap))": lambda f: tl.grad(
        lambda b: tl.jvp(tl.vmap(f), (b,), (V.expand(3, 3),))[0].sum()
    )(BATCH),
    "vjp(jacfwd)": lambda f: tl.vmap(
        lambda x: tl.vjp(lambda x: tl.jacfwd(lambda t: f(x) * t)(ONE), x)[1](ONE)[0]
    )(BATCH),
    "grad(grad), by another": lambda f: tl.vmap(
        tl.grad(lambda x: tl.grad(lambda z: z * f(x))(ONE))
    )(BATCH),
}
further_out = pytest.mark.parametrize("nest", FURTHER_OUT.values(), ids=FURTHER_OUT)

# A node belongs to the tensor's own level, which has none here.
ON_TENSORS = {
    kind: case
    for kind, case in HOOKED.items()
    if "a node" not in kind.replace("beside a node", "") and kind != "after accumulation"
}


@further_out
@pytest.mark.parametrize(("f", "expected"), ON_TENSORS.values(), ids=ON_TENSORS)
def test_hooks_of_a_level_further_out_are_called_as_in_a_loop(f, expected, nest):
    before = ambient()
    found = nest(f)
    assert ambient() == before
    torch.testing.assert_close(found, torch.stack([expected(x) for x in BATCH]))


@further_out
def test_a_hook_further_out_sees_a_sample(nest):
    seen = []

    def f(x):
        y = x.sin()
        y.register_hook(lambda g: seen.append(g.shape))
        return y.sum()

    nest(f)
    assert {*seen} == {X.shape}


def test_a_hook_under_vmap_is_called_once():
    seen = []

    def f(x):
        y = x.sin()
        y.register_hook(lambda g: seen.append([layer.kind for layer in tl.current_stack()]))
        return y.sum()

    tl.grad(lambda b: tl.vmap(f)(b).sum())(BATCH)
    assert seen == [["grad", "vmap"]]


def test_hook_under_vmap_on_a_shared_tensor_sees_the_sum():
    seen = []

    def f(x, y):
        y.register_hook(lambda g: seen.append(g + 0))
        return (x * y).sum()

    tl.grad(lambda y: tl.vmap(f, (0, None))(BATCH, y.sin()).sum())(X)
    torch.testing.assert_close([g + 0 for g in seen], [BATCH.sum(0)])


def test_a_hook_under_vmap_is_removed_by_its_handle():
    def f(x):
        y = x.sin()
        with y.register_hook(lambda g: 2 * g):
            pass
        y.register_hook(lambda g: 3 * g)
        return y.sum()

    found = tl.grad(lambda b: tl.vmap(f)(b).sum())(BATCH)
    torch.testing.assert_close(found, 3 * BATCH.cos())


def test_the_second_derivative_by_a_hook_under_vmap():
    def first(x):
        return tl.grad(lambda b: tl.vmap(normalized)(b).sum())(x)

    def by_hand(x):
        return x * x.sin() / x.norm(dim=-1, keepdim=True) * x.exp() + x.exp()

    expected = torch.autograd.functional.jacobian(by_hand, BATCH)
    torch.testing.assert_close(tl.jacrev(first)(BATCH), expected)
    torch.testing.assert_close(tl.jacfwd(first)(BATCH), expected)


def test_the_gradient_of_a_tangent_goes_by_hooks_on_primals():
    """As in plain torch, where a dual tensor's hooks are on its primal."""

    def f(x):
        y = x.sin()
        y.register_hook(lambda g: 2 * g)
        return (y * x.cos()).sum()

    found = tl.grad(lambda x: tl.jvp(f, (x,), (V,))[1])(X)
    x = X.clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        y = f(torch.autograd.forward_ad.make_dual(x, V))
        tangent = torch.autograd.forward_ad.unpack_dual(y).tangent
        torch.testing.assert_close(found, torch.autograd.grad(tangent, x)[0])


def test_an_error_in_a_hook_under_vmap_leaves_the_stack_as_it_was():
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g / 0 if g.dim() == 0 else 1 / 0)
        return y.sum()

    before = ambient()
    with pytest.raises(ZeroDivisionError):
        tl.grad(lambda b: tl.vmap(f)(b).sum())(BATCH)
    assert ambient() == before


def a_gradient_of_each(x, y):
    y.register_hook(lambda g: g * x)
    return (x * y).sum()


def retains(x):
    y = x.sin()
    y.retain_grad()
    return y.sum()


def accumulates(x):
    x.register_post_accumulate_grad_hook(lambda x: None)
    return x.sum()


def hooks_what_it_wrote(x):
    y = torch.zeros(3, dtype=torch.float64)
    y[0] = x[0]
    y.register_hook(lambda g: 2 * g)
    return y.sum()


def pulled_back_further_in():
    _, pull = tl.vjp(tl.vmap(scaled), BATCH)
    tl.vmap(tl.vmap(pull))(ONE.expand(2, 2, 3))


REFUSED = {
    "a gradient of each": (
        lambda: tl.grad(lambda y: tl.vmap(a_gradient_of_each, (0, None))(BATCH, y * 1).sum())(X),
        "level 2|escaped",
    ),
    "retain_grad": (
        lambda: tl.grad(lambda b: tl.vmap(retains)(b).sum())(BATCH),
        r"x.retain_grad\(\) was called on a tensor that vmap \(level 2\) does not differentiate "
        r"with respect to: .* grad\(f, taps=\"x\"\)",
    ),
    "retain_grad in jvp": (
        lambda: tl.grad(lambda x: tl.jvp(retains, (x,), (V,))[0])(X),
        r"x.retain_grad\(\) was called on a tensor that jvp \(level 2\)",
    ),
    "register_post_accumulate_grad_hook": (
        lambda: tl.grad(lambda b: tl.vmap(accumulates)(b).sum())(BATCH),
        r"x.register_post_accumulate_grad_hook\(...\) was called on a tensor that vmap \(level 2\)",
    ),
    "what a vmap's function wrote to": (
        lambda: tl.grad(lambda b: tl.vmap(hooks_what_it_wrote)(b).sum())(BATCH),
        r"x.register_hook\(...\) was called on a tensor that the function inside vmap created",
    ),
    "a pass deep in other transforms": (
        pulled_back_further_in,
        r"a hook was registered on a tensor inside vmap \(level 2\), and its gradient is",
    ),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_hooks_further_out_are_rejected(call, words):
    before = ambient()
    with pytest.raises(RuntimeError, match=words):
        call()
    assert ambient() == before


def test_hook_on_an_unrecorded_tensor_raises_torchs_error():
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        tl.vmap(lambda x: (x.register_hook(print), x)[1])(BATCH)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        tl.grad(lambda x: (x.detach().register_hook(print), x.sum())[1])(X)


@hooked
def test_engine_applies_hooks_identically(f, expected):
    """With an autograd.Function in the graph, the engine runs all of it."""
    found, who = who_pulled_back(lambda: tl.grad(lambda x: f(x) + Same.apply(x * 0).sum())(X))
    assert "autograd" in who
    torch.testing.assert_close(found, expected(X))


class Same(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


def test_hooks_after_accumulation_run_where_the_engine_runs_the_pass():
    def f(x):
        x.register_post_accumulate_grad_hook(lambda x: setattr(x, "grad", x.grad * 5))
        return Same.apply(x.sin()).sum()

    torch.testing.assert_close(tl.grad(f)(X), 5 * X.cos())


def called(log, name, change=None):
    """A hook that logs its calls and their arguments."""

    def hook(*given):
        flat = [t for part in given for t in (part if isinstance(part, tuple) else (part,))]
        log.append((name, [None if t is None else t.detach() + 0 for t in flat]))
        return None if change is None else change(*given)

    return hook


def watched_all_over(x, log):
    """Hooks of every kind on several tensors and their nodes."""
    x.register_hook(called(log, "x"))
    a = x.sin()
    b = x.exp()
    a.register_hook(called(log, "a", lambda g: 2 * g))
    a.grad_fn.register_hook(called(log, "a's node, after", lambda gi, go: (3 * gi[0],)))
    a.grad_fn.register_prehook(called(log, "a's node, before", lambda go: (go[0] + 1,)))
    a.register_hook(called(log, "a, again"))
    b.grad_fn.register_hook(called(log, "b's node, after"))
    b.register_hook(called(log, "b"))
    c = a * b
    c.register_hook(called(log, "c"))
    first, second = c.split([1, 2])
    second.register_hook(called(log, "second"))
    first.register_hook(called(log, "first"))
    first.grad_fn.register_prehook(called(log, "split's node, before"))
    unused = b.cos()
    unused.register_hook(called(log, "unused"))
    value = (second * a[1:]).sum()
    value.register_hook(called(log, "value"))
    value.grad_fn.register_hook(called(log, "value's node, after"))
    return value


def logged_by_autograd():
    log = []
    x = X.clone().requires_grad_()
    found = torch.autograd.grad(watched_all_over(x, log), x)[0]
    return log, found


def flattened(log):
    return [name for name, _ in log], [t for _, values in log for t in values if t is not None]


def test_hooks_are_called_in_torchs_order_with_what_torch_gives_them():
    log = []
    found = tl.grad(lambda x: watched_all_over(x, log))(X)
    expected_log, expected = logged_by_autograd()
    torch.testing.assert_close(found, expected)
    names, values = flattened(log)
    expected_names, expected_values = flattened(expected_log)
    assert names == expected_names
    torch.testing.assert_close([v + 0 for v in values], expected_values)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_arguments_are_finished_in_torchs_order(count):
    def f(xs, log):
        total = 0
        for i, x in enumerate(xs):
            x.register_hook(called(log, i))
            y = x.sin()
            y.register_hook(called(log, f"sin {i}"))
            total = total + (y * xs[-1]).sum()
        return total

    log, expected = [], []
    tl.grad(lambda *xs: f(xs, log), argnums=tuple(range(count)))(*[X + i for i in range(count)])
    leaves = [(X + i).requires_grad_() for i in range(count)]
    torch.autograd.grad(f(leaves, expected), leaves)
    assert flattened(log)[0] == flattened(expected)[0]


def test_a_hook_sees_none_where_nothing_was_pulled_back():
    def f(x, log):
        head, tail = x.exp().split([1, 2])
        head.register_hook(called(log, "head"))
        head.grad_fn.register_prehook(called(log, "node"))
        return tail.sum()

    log, expected = [], []
    tl.grad(lambda x: f(x, log))(X)
    x = X.clone().requires_grad_()
    torch.autograd.grad(f(x, expected), x)
    assert [(name, [v is None for v in values]) for name, values in log] == [
        (name, [v is None for v in values]) for name, values in expected
    ]


def test_a_hook_runs_at_the_level_of_its_tensor():
    levels = []

    def f(x):
        x.sin().register_hook(lambda g: levels.append("not called"))
        y = x.sin()
        y.register_hook(lambda g: levels.append((level_of(g), g.shape, len(tl.current_stack()))))
        return y.sum()

    tl.grad(lambda x: tl.grad(f)(x).sum())(X)
    assert levels == [(2, X.shape, 2)]
    levels.clear()
    tl.vmap(tl.grad(f))(BATCH)
    assert levels == [(2, X.shape, 2)]  # once, for the whole batch
    levels.clear()
    _, vjp_fn = tl.vjp(f, X)
    vjp_fn(ONE)
    vjp_fn(ONE)
    assert levels == [(-1, X.shape, 0)] * 2  # the level has ended


def test_a_hook_may_differentiate_on_its_own():
    def f(x):
        y = x.sin()

        def hook(g):
            (inner,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(inner.sum(), x)
            return g * second

        y.register_hook(hook)
        return y.sum()

    torch.testing.assert_close(tl.grad(f)(X), X.cos() * 6 * X)


def test_a_hook_may_register_others():
    def f(x):
        y = x.sin()
        z = y * 2
        z.register_hook(lambda g: (y.register_hook(lambda g: 10 * g), None)[1])
        z.register_hook(lambda g: (x.register_hook(lambda g: g + 1), None)[1])
        return z.sum()

    torch.testing.assert_close(tl.grad(f)(X), 20 * X.cos() + 1)


def hooks_that_raise():
    def refuse(*_):
        raise ZeroDivisionError("by a hook")

    yield "tensor", lambda x, y: y.register_hook(refuse)
    yield "argument", lambda x, y: x.register_hook(refuse)
    yield "accumulated", lambda x, y: x.register_post_accumulate_grad_hook(refuse)
    yield "before", lambda x, y: y.grad_fn.register_prehook(refuse)
    yield "after", lambda x, y: y.grad_fn.register_hook(refuse)


RAISING = dict(hooks_that_raise())


@pytest.mark.parametrize("kind", RAISING)
@pytest.mark.parametrize("nest", ["grad", "grad(grad)", "vmap(grad)", "vjp", "hessian"])
def test_an_error_in_a_hook_leaves_the_stack_as_it_was(kind, nest):
    def f(x):
        y = x.sin()
        RAISING[kind](x, y)
        return (y * x).sum()

    before = ambient()
    with pytest.raises(ZeroDivisionError, match="by a hook"):
        NESTS[nest][0](f)
    assert ambient() == before
    torch.testing.assert_close(tl.grad(lambda x: x.sin().sum())(X), X.cos())


WRONG = {
    "size": (lambda g: g[:2], "has changed the size of value"),
    "dtype": (lambda g: g.float(), "has changed the type of value"),
    "no tensor": (lambda g: 1.0, "expected Variable, but hook returned 'float'"),
}


@pytest.mark.parametrize(("hook", "words"), WRONG.values(), ids=WRONG)
def test_invalid_hook_results_are_rejected(hook, words):
    def f(x):
        y = x.sin()
        y.register_hook(hook)
        return (y * x).sum()

    with pytest.raises((RuntimeError, TypeError), match=words):
        tl.grad(f)(X)
    assert tl.current_stack() == ()


def of_all_samples(f):
    return lambda batch: tl.vmap(f)(batch).sum()


@pytest.mark.parametrize(
    ("around", "x"), [(lambda f: f, X), (of_all_samples, BATCH)], ids=["alone", "under vmap"]
)
def test_hooks_hold_no_graph(around, x):
    references = []

    def f(x):
        y = x.sin()

        def hook(g):
            return 2 * g

        references.append(weakref.ref(hook))
        y.register_hook(hook)
        return (y * x).sum()

    gc.disable()
    try:
        tl.grad(around(f))(x)
        assert [reference() for reference in references] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_on_several_gradients_is_the_engines(mode):
    """torch implements it for its engine, and asks the engine about the pass."""
    seen = []

    def f(x):
        y, z = x.sin(), x.exp()
        register_multi_grad_hook((y, z), lambda grads: seen.append(grads), mode=mode)
        return (y * z).sum()

    found, who = who_pulled_back(lambda: tl.grad(f)(X))
    assert who == {"autograd"}
    assert len(seen) == 1
    torch.testing.assert_close(found, X.exp() * (X.cos() + X.sin()))


INNER_LEVELS = {
    "functionalize": lambda f: tl.functionalize(f),
    "vmap": lambda f: lambda x: tl.vmap(f)(x[None])[0],
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x,))[0],
    "jet": lambda f: lambda x: tl.jet(f, (x,), ((x,),))[0],
    "grad": lambda f: lambda x: tl.grad_and_value(lambda a: f(x) + 0 * a)(x.sum())[1],
}


@pytest.mark.parametrize("inner", INNER_LEVELS.values(), ids=INNER_LEVELS)
@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_on_several_gradients_inside_another_level(mode, inner):
    seen = []

    def f(x):
        y, z = x.sin(), x.exp()

        def hook(gradients):
            gradients = [gradients] if mode == "any" else gradients
            seen.extend((g + 0).shape for g in gradients)

        register_multi_grad_hook((y, z), hook, mode=mode)
        return (y * z).sum()

    torch.testing.assert_close(tl.grad(inner(f))(X), X.exp() * (X.cos() + X.sin()))
    assert seen == [X.shape] * (2 if mode == "all" else 1)


def test_a_gradient_edge_of_an_outer_level_is_refused():
    def f(x):
        torch.autograd.graph.get_gradient_edge(x.sin())
        return x.sum()

    with pytest.raises(RuntimeError, match=r"get_gradient_edge\(x\) was called on a tensor"):
        tl.grad(lambda x: tl.vmap(f)(x).sum())(X[None])


def test_a_hook_may_ask_the_engine_to_be_called_at_the_end():
    seen = []

    def hook(g):
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("end"))

    def f(x):
        y = x.sin()
        y.register_hook(hook)
        return y.sum()

    torch.testing.assert_close(tl.grad(f)(X), X.cos())
    assert seen == ["end"]


def retained(x):
    y = x.sin()
    y.retain_grad()
    y.register_hook(lambda g: 2 * g)
    return y


def test_a_retained_gradient_is_there_when_the_pass_is_over():
    kept = []

    def f(x):
        kept.append(retained(x))
        assert kept[0].retains_grad
        return (kept[0] * x).sum()

    found, who = who_pulled_back(lambda: tl.grad(f)(X))
    assert who == {"torchlayers"}
    torch.testing.assert_close(found, 2 * X.cos() * X + X.sin())
    torch.testing.assert_close(kept[0].grad + 0, 2 * X)  # after the hooks


def test_a_gradient_is_retained_at_its_level():
    def second(x):
        kept = []

        def f(x):
            kept.append(retained(x))
            return (kept[0] * x**2).sum()

        tl.grad(f)(x)
        return kept[0].grad

    torch.testing.assert_close(tl.vmap(second)(BATCH), 2 * BATCH**2)
    torch.testing.assert_close(tl.grad(lambda x: second(x).sum())(X), 4 * X)
    torch.testing.assert_close(tl.jvp(second, (X,), (V,))[1], 4 * X * V)


def test_gradient_is_retained_for_the_final_version_of_a_tensor():
    kept = []

    def f(x):
        y = x.sin()
        y.retain_grad()
        y.mul_(x)
        kept.append(y)
        return (y * x).sum()

    tl.grad(f)(X)
    x = X.clone().requires_grad_()
    f(x).backward()
    torch.testing.assert_close(kept[0].grad + 0, kept[1].grad)


def test_retained_gradients_add_up_over_passes():
    kept = []

    def f(x):
        kept.append(retained(x))
        return kept[0] * x

    _, vjp_fn = tl.vjp(f, X)
    vjp_fn(V)
    vjp_fn(X)
    torch.testing.assert_close(kept[0].grad + 0, 2 * X * (X + V))


def test_the_gradient_that_a_hook_finds_is_not_left_on_the_argument():
    seen = []

    def f(x):
        x.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.detach() + 0))
        seen.append(x)
        return x.sin().sum()

    tl.grad(f)(X)
    assert seen[0].grad is None
    torch.testing.assert_close(seen[1] + 0, X.cos())


def escaping(x):
    """A tensor of a level that has ended."""
    kept = []
    tl.grad(lambda y: (kept.append(y.sin() * y), y.sum())[1])(x)
    return kept[0]


def test_escaped_tensor_may_be_returned():
    """Like a retained gradient. Remaining transforms see it as its value."""
    torch.testing.assert_close(tl.vmap(escaping)(BATCH), BATCH.sin() * BATCH)
    torch.testing.assert_close(tl.vjp(escaping, X)[1](V)[0], gradient(X) * V)
    torch.testing.assert_close(tl.jvp(escaping, (X,), (V,))[1], gradient(X) * V)
    torch.testing.assert_close(tl.jacrev(escaping)(X), torch.diag(gradient(X)))
    torch.testing.assert_close(tl.jacfwd(escaping)(X), torch.diag(gradient(X)))


def test_a_gradient_that_a_hook_takes_away_is_zero():
    def f(x):
        x.register_post_accumulate_grad_hook(lambda x: setattr(x, "grad", None))
        return x.sin().sum()

    assert torch.equal(tl.grad(f)(X), torch.zeros_like(X))


def test_hooks_of_outer_tensors_run_in_the_outer_pass():
    seen = []

    def outer(x):
        y = x.exp()
        y.register_hook(lambda g: (seen.append(level_of(g)), 3 * g)[1])
        return tl.grad(lambda z: (z.sin() * y).sum())(x).sum()

    torch.testing.assert_close(tl.grad(outer)(X), -X.sin() * X.exp() + 3 * X.cos() * X.exp())
    assert seen == [1]


def test_hooks_on_captured_leaves_are_those_of_plain_autograd():
    leaf = V.clone().requires_grad_()
    seen = []
    leaf.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    leaf.register_hook(lambda g: 2 * g)
    (tl.grad(lambda x: (x.sin() * leaf).sum())(X)).sum().backward()
    torch.testing.assert_close(seen, [2 * X.cos()])


@pytest.mark.parametrize("size", [1, 256, 257])
def test_sizes_on_both_sides_of_one_pass(size):
    x = torch.linspace(-1, 1, size, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(scaled)(x), 2 * x.cos() * x + x.sin())
    assert isinstance(tl.grad(scaled)(x), Tensor)
