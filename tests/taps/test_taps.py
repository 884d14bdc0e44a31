"""Named intermediate values of functions, and derivatives with respect to them."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import TapError

X = torch.tensor([0.5, -1.0, 1.5], dtype=torch.float64)
V = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
BATCH = torch.stack([X, V, X * V])
ONE = torch.ones((), dtype=torch.float64)


def tapped(x, tap=tl.tap):
    """Function of x with two taps: sin(x) and exp(sin(x))."""
    a = tap(x.sin(), "a")
    b = tap(a.exp(), "b")
    return (a * b * x).sum()


def after_a(a, x):
    return (a * a.exp() * x).sum()


def after_b(b, x):
    return (x.sin() * b * x).sum()


def by_a(x):
    return torch.autograd.functional.jacobian(lambda a: after_a(a, x), x.sin())


def by_b(x):
    return torch.autograd.functional.jacobian(lambda b: after_b(b, x), x.sin().exp())


def plain(x):
    return tapped(x, lambda value, name: value)


def test_outside_of_transforms_a_tap_is_what_it_is_given():
    assert tl.tap(X, "x") is X
    values = {"a": X}
    assert tl.tap(values, "x") is values
    torch.testing.assert_close(tl.grad(tapped)(X), tl.grad(plain)(X))


def test_values():
    assert list(tl.intermediates(tapped)(X)) == ["a", "b"]
    found = tl.intermediates(tapped, ["b"])(X)
    assert list(found) == ["b"]
    assert torch.equal(found["b"], X.sin().exp())


VALUES = {
    "plain": (lambda f: tl.intermediates(f)(X), X),
    "around vmap": (lambda f: tl.intermediates(tl.vmap(f))(BATCH), BATCH),
    "inside vmap": (lambda f: tl.vmap(tl.intermediates(f))(BATCH), BATCH),
    "around grad": (lambda f: tl.intermediates(tl.grad(f))(X), X),
    "around grad(grad)": (
        lambda f: tl.intermediates(tl.grad(lambda x: tl.grad(f)(x).sum()))(X),
        X,
    ),
    "around vmap(grad)": (lambda f: tl.intermediates(tl.vmap(tl.grad(f)))(BATCH), BATCH),
    "around grad(vmap)": (
        lambda f: tl.intermediates(tl.grad(lambda b: tl.vmap(f)(b).sum()))(BATCH),
        BATCH,
    ),
    "around vmap(vmap)": (
        lambda f: tl.intermediates(tl.vmap(tl.vmap(f), 1))(torch.stack([BATCH, 2 * BATCH], 1)),
        torch.stack([BATCH, 2 * BATCH]),
    ),
    "around jvp": (lambda f: tl.intermediates(lambda x: tl.jvp(f, (x,), (V,)))(X), X),
    "around hessian": (lambda f: tl.intermediates(tl.hessian(f))(X), X),
    "around vjp": (lambda f: tl.intermediates(lambda x: tl.vjp(f, x)[1](ONE))(X), X),
}


@pytest.mark.parametrize(("call", "x"), VALUES.values(), ids=VALUES)
def test_values_under_and_around_transforms(call, x):
    before = ambient()
    found = call(tapped)
    assert ambient() == before
    if "a" in found and found["a"].dim() > x.dim():  # a hessian's columns are samples
        x = x.expand_as(found["a"])
    torch.testing.assert_close(found, {"a": x.sin(), "b": x.sin().exp()})


def test_a_value_that_is_alike_for_all_samples_is_there_for_each():
    def f(x):
        tl.tap(V * 2, "shared")
        return x.sum()

    found = tl.intermediates(tl.vmap(f))(BATCH)["shared"]
    torch.testing.assert_close(found, (V * 2).expand(3, 3))


def test_values_are_differentiated_further_out():
    def b_of(x):
        return tl.intermediates(tapped, "b")(x)["b"]

    expected = X.sin().exp() * X.cos()
    torch.testing.assert_close(tl.grad(lambda x: b_of(x).sum())(X), expected)
    torch.testing.assert_close(tl.jvp(b_of, (X,), (V,))[1], expected * V)
    torch.testing.assert_close(tl.jacrev(b_of)(X), expected.diag())


GRADIENTS = {
    "grad": (lambda f: tl.grad(f, taps=["a", "b"])(X)[1], X),
    "grad_and_value": (lambda f: tl.grad_and_value(f, taps=["a", "b"])(X)[0][1], X),
    "vmap(grad)": (lambda f: tl.vmap(tl.grad(f, taps=["a", "b"]))(BATCH)[1], BATCH),
    "grad(vmap)": (
        lambda f: tl.grad(lambda b: tl.vmap(f)(b).sum(), taps=["a", "b"])(BATCH)[1],
        BATCH,
    ),
    "grad(vmap), by other dimensions": (
        lambda f: tl.grad(lambda b: tl.vmap(f, 1)(b).sum(), taps=["a", "b"])(BATCH.T)[1],
        BATCH,
    ),
    "grad(vmap(vmap))": (
        lambda f: tl.grad(lambda b: tl.vmap(tl.vmap(f), 1)(b).sum(), taps=["a", "b"])(
            torch.stack([BATCH, 2 * BATCH], 1)
        )[1],
        torch.stack([BATCH, 2 * BATCH]),
    ),
    "grad(checkpoint)": (lambda f: tl.grad(tl.checkpoint(f), taps=["a", "b"])(X)[1], X),
    "grad of torch's checkpoint": (
        lambda f: tl.grad(lambda x: checkpoint(f, x, use_reentrant=False), taps=["a", "b"])(X)[1],
        X,
    ),
    "of an entry": (
        lambda f: tl.grad(lambda p: f(p["x"]), tl.names("x"), taps=["a", "b"])({"x": X, "y": V})[1],
        X,
    ),
    "jvp(grad)": (lambda f: tl.jvp(tl.grad(f, taps=["a", "b"]), (X,), (V,))[0][1], X),
}


def over_samples(function, x):
    return function(x) if x.dim() == 1 else torch.stack([over_samples(function, y) for y in x])


@pytest.mark.parametrize(("call", "x"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_by_taps(call, x):
    before = ambient()
    found = call(tapped)
    assert ambient() == before
    expected = {"a": over_samples(by_a, x), "b": over_samples(by_b, x)}
    torch.testing.assert_close(found, expected)


def test_grad_with_taps_returns_gradients_by_name():
    gradient = tl.grad(plain)(X)
    found, by_taps = tl.grad(tapped, taps="a")(X)
    torch.testing.assert_close(found, gradient)
    assert list(by_taps) == ["a"]
    with_aux = lambda x: (tapped(x), "aux")  # noqa: E731
    (found, by_taps), aux = tl.grad(with_aux, has_aux=True, taps="a")(X)
    torch.testing.assert_close((found, by_taps["a"]), (gradient, by_a(X)))
    assert aux == "aux"
    (found, _), (value, aux) = tl.grad_and_value(with_aux, has_aux=True, taps="a")(X)
    torch.testing.assert_close((found, value), (gradient, plain(X)))


def test_second_derivatives_by_taps():
    def gradient_by_a(x):
        return tl.grad(tapped, taps="a")(x)[1]["a"]

    expected = torch.autograd.functional.jacobian(lambda x: x.sin().exp() * x * (1 + x.sin()), X)
    torch.testing.assert_close(tl.jacrev(gradient_by_a)(X), expected)
    torch.testing.assert_close(tl.jvp(gradient_by_a, (X,), (V,))[1], expected @ V)


def test_a_tap_in_a_gradient_is_the_outer_ones_too():
    """The outer level's value is what the outer result depends on."""

    def outer(x):
        return (tl.grad(lambda y: (tl.tap(y.sin(), "a") * x).sum())(x)).sum()

    _, by_taps = tl.grad(outer, taps="a")(X)  # cos(x) does not depend on sin(x)
    assert torch.equal(by_taps["a"], torch.zeros_like(X))


def test_a_gradient_by_what_nothing_depends_on_is_zero():
    def f(x):
        tl.tap(x.exp(), "unused")
        tl.tap(V * 2, "constant")
        tl.tap(torch.arange(2), "numbers")
        return x.sum()

    _, found = tl.grad(f, taps=["unused", "constant", "numbers"])(X)
    zeros = torch.zeros_like(X)
    assert torch.equal(found["unused"], zeros)
    assert torch.equal(found["constant"], zeros)
    assert torch.equal(found["numbers"], torch.zeros(2, dtype=torch.int64))


def test_a_gradient_by_a_tap_is_that_by_what_it_returns():
    def f(x):
        a = x.sin()
        return (tl.tap(a, "a") * a).sum()

    torch.testing.assert_close(tl.grad(f, taps="a")(X)[1]["a"], X.sin())


def test_trees_are_tapped():
    def f(x):
        found = tl.tap({"p": (x.sin(), x * 2), "n": 3}, "values")
        return (found["p"][0] * found["p"][1] * found["n"]).sum()

    _, by_taps = tl.grad(f, taps="values")(X)
    torch.testing.assert_close(by_taps["values"]["p"], (6 * X, 3 * X.sin()))
    assert by_taps["values"]["n"] == 3


def test_cotangents_at_taps():
    (value, values), pull = tl.vjp(tapped, X, taps=["a", "b"])
    torch.testing.assert_close(value, plain(X))
    torch.testing.assert_close(values, {"a": X.sin(), "b": X.sin().exp()})
    zero = torch.zeros_like(X)
    found = pull((ONE, {"a": V, "b": zero}))[0]
    torch.testing.assert_close(found, tl.grad(plain)(X) + V * X.cos())
    found = pull((0 * ONE, {"a": zero, "b": V}))[0]
    torch.testing.assert_close(found, V * X.sin().exp() * X.cos())


def test_cotangents_at_taps_inside_vmap():
    (_, values), pull = tl.vjp(tl.vmap(tapped), BATCH, taps="a")
    torch.testing.assert_close(values["a"], BATCH.sin())
    (found,) = pull((torch.zeros(3, dtype=torch.float64), {"a": BATCH}))
    torch.testing.assert_close(found, BATCH * BATCH.cos())


def test_cotangents_and_aux():
    _, pull, aux = tl.vjp(lambda x: (tapped(x), "aux"), X, has_aux=True, taps="a")
    assert aux == "aux"
    torch.testing.assert_close(pull((ONE, {"a": V}))[0], tl.grad(plain)(X) + V * X.cos())


TANGENTS = {
    "jvp": (lambda f: tl.jvp(f, (X,), (V,), taps={"a": X})[1], X, V, X),
    "vmap(jvp)": (
        lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (V,), taps={"a": x}))(BATCH)[1],
        BATCH,
        V.expand(3, 3),
        BATCH,
    ),
    "jvp(vmap)": (
        lambda f: tl.jvp(tl.vmap(f), (BATCH,), (0 * BATCH,), taps={"a": BATCH.cos()})[1],
        BATCH,
        0 * BATCH,
        BATCH.cos(),
    ),
}


@pytest.mark.parametrize(("call", "x", "v", "t"), TANGENTS.values(), ids=TANGENTS)
def test_tangents_at_taps(call, x, v, t):
    def expected(x, v, t):
        return tl.grad(plain)(x) @ v + by_a(x) @ t

    if x.dim() == 2:
        wanted = torch.stack([expected(*each) for each in zip(x, v, t, strict=True)])
    else:
        wanted = expected(x, v, t)
    torch.testing.assert_close(call(tapped), wanted)


def test_tangents_at_taps_are_differentiated():
    found = tl.grad(lambda x: tl.jvp(tapped, (x,), (V,), taps={"a": x})[1])(X)

    def wanted(x):
        by_x = torch.autograd.functional.jacobian(plain, x, create_graph=True)
        return (by_x * V).sum() + (x.sin().exp() * x * (1 + x.sin()) * x).sum()

    torch.testing.assert_close(found, torch.autograd.functional.jacobian(wanted, X))


def test_a_tangent_leaves_the_value_as_it_is():
    zeros = torch.tensor([0.0, -0.0])
    value, _ = tl.jvp(lambda x: tl.tap(x * 1, "a"), (zeros,), (zeros,), taps={"a": zeros + 1})
    assert torch.equal(value.signbit(), zeros.signbit())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.last = nn.Tanh()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sin()
        return self.last(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(Encoder(), nn.Linear(3, 2)).double()


def given(net):
    return {name: p.detach() for name, p in net.named_parameters()}


@pytest.mark.parametrize("how", ["closure", "functional_call", "functional"])
def test_values_of_modules(net, how):
    call = {
        "closure": lambda x: net(x),
        "functional_call": lambda x: tl.functional_call(net, given(net), (x,)),
        "functional": lambda x: tl.functional(net)[0](given(net), {}, x)[0],
    }[how]
    found = tl.intermediates(call, ["0.layers.1", "0.last", "0"])(X)
    hidden = net[0].layers[1](net[0].layers[0](X).sin())
    torch.testing.assert_close(found["0.layers.1"], hidden)
    torch.testing.assert_close(found["0"], hidden.sin().tanh())
    assert [*found] == ["0.layers.1", "0.last", "0"]


def test_gradients_by_modules(net):
    def loss(params, x):
        return tl.functional_call(net, params, (x,)).square().sum()

    gradients, by_taps = tl.grad(loss, taps=["0.layers.0"])(given(net), X)
    torch.testing.assert_close(gradients, tl.grad(loss)(given(net), X))

    def rest(hidden):
        return net[1](net[0].last(net[0].layers[1](hidden.sin()).sin())).square().sum()

    hidden = net[0].layers[0](X).detach()
    wanted = torch.autograd.functional.jacobian(rest, hidden)
    torch.testing.assert_close(by_taps["0.layers.0"], wanted)
    per_sample = tl.vmap(tl.grad(loss, taps=["0.layers.0"]), (None, 0))(given(net), BATCH)[1]
    torch.testing.assert_close(per_sample["0.layers.0"][0], wanted)
    assert not torch.nn.modules.module._global_forward_hooks


def test_modules_leave_nothing_behind_after_an_error(net):
    def fails(x):
        net[0](x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.grad(fails, taps=["last"])(X)
    assert not torch.nn.modules.module._global_forward_hooks
    assert [*tl.intermediates(net, "1")(X)] == ["1"]
    with pytest.raises(RuntimeError, match="shapes"):
        tl.intermediates(net, "1")(torch.ones(5, dtype=torch.float64))
    assert [*tl.intermediates(net, "1")(X)] == ["1"]


def twice(x):
    return tl.tap(x, "a") + tl.tap(x, "a")


def steps(x):
    """A tap in each step."""

    def step(carry, y):
        a = tl.tap(carry.sin() * y, "a")
        return carry + a, a.exp()

    carry, ys = tl.scan(step, x[0], x)
    return carry * ys.sum()


def in_some_steps(x):
    return tl.fori_loop(0, 3, lambda i, c: tl.tap(c.sin(), "a") if i == 1 else c, x)


REFUSED = {
    "unknown": (
        lambda net: tl.intermediates(tapped, "c")(X),
        "intermediates: no value is named 'c'; found 'a', 'b'.",
    ),
    "none at all": (
        lambda net: tl.grad(plain, taps=["c"])(X),
        "grad: no value is named 'c'; found no tap.",
    ),
    "unknown module": (
        lambda net: tl.intermediates(net, "2")(X),
        "no value is named '2'; found no tap, and modules '0.layers.0', '0.layers.1', '0.last', "
        "'0', '1'.",
    ),
    "twice": (lambda net: tl.intermediates(twice)(X), "two values are named 'a'"),
    "twice, in grad": (
        lambda net: tl.grad(lambda x: twice(x).sum(), taps="a")(X),
        "grad: two values are named 'a'",
    ),
    "asked for twice": (
        lambda net: tl.grad(tapped, taps=["a", "a"])(X),
        "grad: 'a' is given twice.",
    ),
    "no name": (lambda net: tl.grad(tapped, taps=[1])(X), "tap names must be strings, got int"),
    "no tensor": (
        lambda net: tl.intermediates(lambda x: tl.tap(3, "a"))(X),
        "the value named 'a' contains no tensors: it is of type int.",
    ),
    "a tangent of another shape": (
        lambda net: tl.jvp(tapped, (X,), (V,), taps={"a": V[:2]}),
        r"the tangent at 'a' must be a tensor like the value, of shape \(3,\) and torch.float64, "
        r"got one of shape \(2,\)",
    ),
    "a tangent of another dtype": (
        lambda net: tl.jvp(tapped, (X,), (V,), taps={"a": V.float()}),
        "got one of shape .* and torch.float32",
    ),
    "no tangent": (
        lambda net: tl.jvp(tapped, (X,), (V,), taps={"a": 1.0}),
        "must be a tensor like the value, .* got float",
    ),
    "no dict": (
        lambda net: tl.jvp(tapped, (X,), (V,), taps=["a"]),
        "jvp: taps must be a dict of tangents by name, got list",
    ),
    "in a loop of Python's": (
        lambda net: tl.intermediates(lambda x: [tl.tap(each, "a") for each in x])(X),
        "two values are named 'a'. .* use scan, map or fori_loop",
    ),
    "twice in a step": (
        lambda net: tl.intermediates(lambda x: tl.map(twice, x))(X),
        "two values are named 'a'",
    ),
    "in two loops": (
        lambda net: tl.intermediates(lambda x: (steps(x), steps(x)))(X),
        "two values are named 'a'",
    ),
    "in a loop and outside": (
        lambda net: tl.intermediates(lambda x: (tl.tap(x, "a"), steps(x)))(X),
        "two values are named 'a'",
    ),
    "in some steps": (
        lambda net: tl.intermediates(in_some_steps)(X),
        "some steps of fori_loop have no value named 'a', but others do",
    ),
    "a tangent for fewer steps": (
        lambda net: tl.jvp(steps, (X,), (V,), taps={"a": V[:2]}),
        r"the tangent at 'a' must have dimension 0 for scan, of size 3, got shape \(2,\)",
    ),
    "value and name the wrong way round": (
        lambda net: tl.tap("a", X),
        "name must be a string, got Tensor",
    ),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_taps_are_rejected(call, words, net):
    before = ambient()
    with pytest.raises(TapError, match=words):
        call(net)
    assert ambient() == before


def test_taps_in_branches():
    def f(x):
        return tl.cond(x.sum() > 0, lambda x: tl.tap(x.sin(), "a"), lambda x: x, x).sum()

    _, by_taps = tl.grad(f, taps="a")(X)
    torch.testing.assert_close(by_taps["a"], torch.ones_like(X))


def test_nested_listeners_are_independent():
    def outer(x):
        return (tl.intermediates(tapped, "a")(x)["a"] * x).sum() + tl.tap(x.cos(), "c").sum()

    assert [*tl.intermediates(outer)(X)] == ["a", "b", "c"]
    assert [*tl.grad(outer, taps="c")(X)[1]] == ["c"]


def test_listeners_are_thread_local(net):
    found, errors = {}, []

    def work(i):
        try:
            for _ in range(10):
                found[i] = tl.intermediates(net, "1")(X * i)["1"]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for i in range(3):
        torch.testing.assert_close(found[i], net(X * i))


def test_taps_in_hooks_are_ignored():
    def f(x):
        a = tl.tap(x.sin(), "a")
        a.register_hook(lambda g: g + 0 * tl.tap(g, "a"))
        return a.sum()

    torch.testing.assert_close(tl.intermediates(tl.grad(f))(X)["a"], X.sin())


# The same function with its loop unrolled: a tap then has a name for each step.
def written_out(x, reverse=False):
    carry, ys = x[0], []
    for i in reversed(range(3)) if reverse else range(3):
        a = tl.tap(carry.sin() * x[i], f"a{i}")
        carry = carry + a
        ys.append(a.exp())
    return carry * sum(ys)


def looped(**options):
    def f(x):
        def step(carry, y):
            a = tl.tap(carry.sin() * y, "a")
            return carry + a, a.exp()

        carry, ys = tl.scan(step, x[0], x, **options)
        return carry * ys.sum()

    return f


LOOPS = {
    "scan": {},
    "reversed": {"reverse": True},
    "checkpointed": {"checkpoint": True},
    "checkpointed, reversed": {"checkpoint": 2, "reverse": True},
    "binomial": {"snapshots": 1},
    "binomial, reversed": {"snapshots": 2, "reverse": True},
}
NAMES = ["a0", "a1", "a2"]


def side_by_side(found, dim=0):
    return torch.stack([found[name] for name in NAMES], dim)


@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
def test_the_steps_of_a_scan_are_put_together(options):
    f, reverse = looped(**options), options.get("reverse", False)

    def plainly(x):
        return written_out(x, reverse)

    values = side_by_side(tl.intermediates(plainly)(X))
    torch.testing.assert_close(tl.intermediates(f)(X)["a"], values)
    gradient, by_taps = tl.grad(f, taps="a")(X)
    expected, by_steps = tl.grad(plainly, taps=NAMES)(X)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(by_taps["a"], side_by_side(by_steps))
    per_sample = tl.vmap(tl.grad(f, taps="a"))(BATCH)[1]["a"]
    torch.testing.assert_close(per_sample[0], side_by_side(by_steps))
    summed = tl.grad(lambda b: tl.vmap(f)(b).sum(), taps="a")(BATCH)[1]["a"]
    torch.testing.assert_close(summed, per_sample)
    pushed = tl.jvp(f, (X,), (X,), taps={"a": V})
    tangents = dict(zip(NAMES, V, strict=True))
    torch.testing.assert_close(pushed, tl.jvp(plainly, (X,), (X,), taps=tangents))
    batched = tl.jvp(tl.vmap(f), (BATCH,), (BATCH,), taps={"a": BATCH.cos()})
    each = [tl.jvp(f, (x,), (x,), taps={"a": x.cos()})[1] for x in BATCH]
    torch.testing.assert_close(batched[1], torch.stack(each))


def rows_in(loop):
    """A tap in a loop inside a loop."""

    def f(x):
        rows = loop(lambda c: loop(lambda d: tl.tap(c * d, "a"), x), x)
        return (rows * rows).sum()

    return f


LOOPS_OF_MAPS = {
    "map": tl.map,
    "map, some at a time": lambda f, x: tl.map(f, x, batch_size=2),
    "vmap": lambda f, x: tl.vmap(f)(x),
    "vmap, in chunks": lambda f, x: tl.vmap(f, chunk_size=2)(x),
    "vmap, in chunks that fit": lambda f, x: tl.vmap(f, chunk_size="auto")(x),
}


@pytest.mark.parametrize("inner", LOOPS_OF_MAPS.values(), ids=LOOPS_OF_MAPS)
@pytest.mark.parametrize("outer", LOOPS_OF_MAPS.values(), ids=LOOPS_OF_MAPS)
def test_loops_in_loops_have_dimensions_in_their_order(outer, inner):
    x, y = X, V[:2]

    def f(x):
        rows = outer(lambda c: inner(lambda d: tl.tap(c.sin() * d, "a"), y), x)
        return (rows * rows).sum()

    value = x.sin()[:, None] * y
    torch.testing.assert_close(tl.intermediates(f)(x)["a"], value)
    torch.testing.assert_close(tl.grad(f, taps="a")(x)[1]["a"], 2 * value)
    torch.testing.assert_close(
        tl.jvp(f, (x,), (0 * x,), taps={"a": value})[1], 2 * (value**2).sum()
    )
    torch.testing.assert_close(
        tl.vmap(tl.grad(f, taps="a"))(BATCH)[1]["a"], 2 * BATCH.sin()[..., None] * y
    )


def test_fori_loop_taps_are_stacked_by_step():
    def f(x):
        return tl.fori_loop(1, 4, lambda i, c: tl.tap(i * c, "a"), x).sum()

    torch.testing.assert_close(tl.intermediates(f)(X)["a"], torch.stack([X, 2 * X, 6 * X]))
    expected = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)[:, None].expand(3, 3)
    torch.testing.assert_close(tl.grad(f, taps="a")(X)[1]["a"], expected)


def test_a_scan_without_slices_has_no_steps():
    def f(x):
        carry, _ = tl.scan(lambda c, y: (c + tl.tap(c * y, "a"), y), x[0], x[:0])
        return carry

    assert tl.intermediates(f)(X)["a"].shape == (0,)
    assert tl.grad(f, taps="a")(X)[1]["a"].shape == (0,)
    nothing = torch.zeros(0, dtype=torch.float64)
    torch.testing.assert_close(tl.jvp(f, (X,), (V,), taps={"a": nothing})[1], V[0])


def test_chunks_of_columns_are_put_together():
    whole = tl.intermediates(tl.hessian(tapped))(X)
    torch.testing.assert_close(tl.intermediates(tl.hessian(tapped, chunk_size=2))(X), whole)


BUDGETED = {
    "grad": lambda f, **options: tl.grad(f, taps=["a", "b"], **options)(X),
    "grad_and_value": lambda f, **options: tl.grad_and_value(f, taps=["a", "b"], **options)(X),
    "vjp": lambda f, **options: tl.vjp(f, X, taps=["a", "b"], **options)[1](
        (ONE, {"a": X, "b": V})
    ),
    "vmap(grad)": lambda f, **options: tl.vmap(tl.grad(f, taps=["a", "b"], **options))(BATCH),
    "grad(vmap)": lambda f, **options: tl.grad(
        lambda b: tl.vmap(f)(b).sum(), taps=["a", "b"], **options
    )(BATCH),
    "grad(grad)": lambda f, **options: tl.grad(
        lambda x: (tl.grad(f, taps=["a", "b"], **options)(x)[1]["b"] * V).sum()
    )(X),
}


def long(x):
    """Has enough operators for the budget to matter."""
    for i in range(12):
        x = tl.tap(x.sin() * x.exp(), "a") if i == 4 else x.sin() * x.exp()
    return tl.tap(x, "b").sum()


@pytest.mark.parametrize("call", BUDGETED.values(), ids=BUDGETED)
@pytest.mark.parametrize("budget", [1.0, 0.5, 10**6])
def test_taps_within_a_memory_budget(call, budget):
    torch.testing.assert_close(call(long, memory_budget=budget), call(long), rtol=0, atol=0)


def test_taps_in_a_function_that_is_compiled():
    def gradients(x):
        gradient, by_taps = tl.grad(tapped, taps=["a", "b"])(x)
        return gradient, by_taps["a"], tl.intermediates(tapped, "b")(x)["b"]

    compiled = tl.compile(gradients)
    for x in BATCH:
        torch.testing.assert_close(compiled(x), gradients(x))


def test_torch_compile_ignores_a_tap_without_listener():
    compiled = torch.compile(tapped, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), plain(X))
    of_gradient = torch.compile(tl.grad(tapped), backend="eager", fullgraph=True)
    torch.testing.assert_close(of_gradient(X), tl.grad(plain)(X))


@pytest.mark.parametrize(
    "around",
    [
        tl.laplacian,
        lambda f: lambda x: tl.jet(f, (x,), ([V],))[1],
        lambda f: tl.functionalize(tl.grad(f)),
        lambda f: lambda x: tl.grad(tl.laplacian(f))(x),
    ],
    ids=["laplacian", "jet", "functionalize of grad", "grad of laplacian"],
)
def test_values_inside_layers_written_in_python(around):
    found = tl.intermediates(around(tapped))(X)
    torch.testing.assert_close(found, {"a": X.sin(), "b": X.sin().exp()})


def test_the_detection_of_a_pattern_names_nothing():
    """The function runs once more for the derivative, and its values are named there."""

    def f(x):
        return tl.tap(x.sin(), "s") * x

    found = tl.intermediates(tl.jacfwd(f, sparse=True))(X)["s"]
    torch.testing.assert_close(found, X.sin().expand_as(found))
