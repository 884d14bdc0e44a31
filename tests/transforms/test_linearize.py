"""linearize: the value, and the jvp as a function of the tangents alone."""

import functools
import threading

import pytest
import torch
import torch.func
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from tests.support.calls import agree, ambient, level_of, structures

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([1.0, -1.0, 0.3])
T = torch.tensor([2.0, -1.0, 0.5])
Z = torch.complex(X, Y)


def in_place(x):
    y = x.sin()
    y.mul_(x)
    z = torch.zeros_like(x)
    z[0] = y[1]
    return z.add_(y)


def in_place_on_a_view(x):
    y = x.clone()
    y[1:].mul_(2)
    return y * x


def in_place_on_a_constant(x):
    scale = torch.ones(3)
    scale[0] = 5.0
    scale.mul_(2)
    return scale * x


def in_place_on_a_captured_shape(x):
    y = torch.empty_like(x)
    y.fill_(3.0).mul_(x)
    return y.exp_()


def tree(x, y):
    return {"a": x * y, "b": [x.sum(), y]}


torch.manual_seed(0)
MODULE = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))
MODULE.requires_grad_(False)

FUNCTIONS = {
    "elementwise": (torch.sin, (X,)),
    "linear": (lambda x: 3 * x.sum(), (X,)),
    "of two": (lambda x, y: x @ y * x, (X, Y)),
    "to a structure": (tree, (X, Y)),
    "of a structure": (lambda d: d["x"] * d["l"][0], ({"x": X, "l": [Y]},)),
    "of itself": (lambda x: x, (X,)),
    "constant": (lambda x: torch.ones(2), (X,)),
    "detached": (lambda x: x.detach() * x, (X,)),
    "captured": (lambda x: x * Y, (X,)),
    "integer output": (lambda x: (x.argmax(), x), (X,)),
    "module": (MODULE, (X,)),
    "softmax": (lambda x: x.softmax(0), (X,)),
    "sorting": (lambda x: x.sort().values * x, (X,)),
    "complex": (lambda z: z * z.conj(), (Z,)),
    "double": (torch.exp, (X.double(),)),
    "without dimensions": (torch.exp, (X[0],)),
    "without elements": (torch.exp, (X[:0],)),
    "transposed": (lambda m: m @ m, (torch.rand(3, 3).t(),)),
    "in place": (in_place, (X,)),
    "in place on a view": (in_place_on_a_view, (X,)),
    "in place on a constant": (in_place_on_a_constant, (X,)),
    "in place on a captured shape": (in_place_on_a_captured_shape, (X,)),
    "of grad": (tl.grad(lambda x: (x**3).sum()), (X,)),
    "of vmap": (tl.vmap(torch.exp), (X,)),
    "of jvp": (lambda x: tl.jvp(torch.exp, (x,), (x,))[1], (X,)),
    "of torch.func's grad": (torch.func.grad(lambda x: (x**3).sum()), (X,)),
}
functions = pytest.mark.parametrize(("f", "primals"), FUNCTIONS.values(), ids=FUNCTIONS)


def tangents_of(primals, start=1.0):
    def tangent(leaf):
        values = torch.linspace(start, 2, max(leaf.numel(), 1))[: leaf.numel()]
        return values.reshape(leaf.shape).to(leaf.dtype)

    return pytree.tree_map(tangent, primals)


@functions
def test_linearize_agrees_with_jvp(f, primals):
    output, jvp_fn = tl.linearize(f, *primals)
    torch.testing.assert_close(output, f(*primals))
    for tangents in (tangents_of(primals), tangents_of(primals, start=-3.0)):
        torch.testing.assert_close(jvp_fn(*tangents), tl.jvp(f, primals, tangents)[1])


@functions
def test_the_derivative_is_linear(f, primals):
    _, jvp_fn = tl.linearize(f, *primals)
    one, other = tangents_of(primals), tangents_of(primals, start=-3.0)
    combined = pytree.tree_map(lambda a, b: 2 * a - 3 * b, one, other)
    expected = pytree.tree_map(lambda a, b: 2 * a - 3 * b, jvp_fn(*one), jvp_fn(*other))
    torch.testing.assert_close(jvp_fn(*combined), expected, rtol=1e-4, atol=1e-4)


torch_func_warns = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")


# torch.func constant-folds tensors that in-place operators write to.
@torch_func_warns
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith("in place on")])
def test_linearize_agrees_with_torch_func(name):
    f, primals = FUNCTIONS[name]
    tangents = tangents_of(primals)

    def call(tf):
        output, jvp_fn = tf.linearize(f, *primals)
        return output, jvp_fn(*tangents)

    torch.testing.assert_close(call(tl), call(torch.func))


def test_later_writes_do_not_change_the_derivative():
    """Later writes to a primal or to a captured tensor have no effect."""
    for writes_after_a_call in (False, True):
        primal, captured = X.clone(), Y.clone()
        _, jvp_fn = tl.linearize(lambda x, y=captured: x.exp() * y.exp(), primal)
        if writes_after_a_call:
            jvp_fn(T)
        primal.zero_()
        captured.zero_()
        torch.testing.assert_close(jvp_fn(T), X.exp() * Y.exp() * T)


def test_the_function_is_not_run_again():
    calls = []
    _, jvp_fn = tl.linearize(lambda x: calls.append(x) or x.sin(), X)
    runs = len(calls)
    for _ in range(5):
        jvp_fn(T)
    assert len(calls) == runs == 2


def test_a_call_runs_less_than_a_jvp():
    """Whatever does not depend on the tangents is computed once."""

    class Counting(TorchDispatchMode):
        operators = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operators += 1
            return func(*args, **(kwargs or {}))

    def f(x):
        for _ in range(10):
            x = x.sin().cos()
        return x

    _, jvp_fn = tl.linearize(f, X)
    jvp_fn(T)
    with Counting() as by_linearize:
        jvp_fn(T)
    with Counting() as by_jvp:
        tl.jvp(f, (X,), (T,))
    assert by_linearize.operators < by_jvp.operators / 2


@torch_func_warns
@structures
def test_structures(pack):
    def f(arg):
        x, y = pytree.tree_leaves(arg)[:2]
        return pack(x * y, x.sum())

    def call(tf):
        output, jvp_fn = tf.linearize(f, pack(X, Y))
        return output, jvp_fn(pack(T, X))

    agree(call)


@pytest.mark.parametrize("f", [torch.sin, lambda x: 2 * x, lambda x: torch.ones(2), lambda x: x])
def test_results_are_plain_tensors(f):
    output, jvp_fn = tl.linearize(f, X)
    for tensor in (output, jvp_fn(T)):
        assert type(tensor) is torch.Tensor
        assert not tensor.requires_grad


def test_nothing_returned_carries_a_wrapper():
    output, jvp_fn = tl.linearize(torch.sin, X)
    assert level_of(output) == level_of(jvp_fn(T)) == -1
    assert tl.current_stack() == ()


# With other transforms


def by_linearize(f):
    """The derivative of f along its own argument, by linearize."""
    return lambda x: tl.linearize(f, x)[1](x)


def by_jvp(f):
    return lambda x: tl.jvp(f, (x,), (x,))[1]


INSIDE = {
    "grad": lambda g: tl.grad(lambda x: g(x).sum())(X),
    "grad(grad)": lambda g: tl.grad(lambda x: tl.grad(lambda y: g(y).sum())(x).sum())(X),
    "vjp": lambda g: tl.vjp(g, X)[1](T),
    "jvp": lambda g: tl.jvp(g, (X,), (T,)),
    "vmap": lambda g: tl.vmap(g)(torch.stack([X, Y])),
    "jacfwd": lambda g: tl.jacfwd(g)(X),
    "torch.func's grad": lambda g: torch.func.grad(lambda x: g(x).sum())(X),
    "torch.func's vmap": lambda g: torch.func.vmap(g)(torch.stack([X, Y])),
}


@pytest.mark.parametrize("f", [torch.exp, in_place, in_place_on_a_view])
@pytest.mark.parametrize("transform", INSIDE.values(), ids=INSIDE)
def test_inside_other_transforms(transform, f):
    torch.testing.assert_close(transform(by_linearize(f)), transform(by_jvp(f)))


@pytest.mark.parametrize("f", [torch.exp, in_place, in_place_on_a_view])
def test_the_derivative_under_other_transforms(f):
    _, jvp_fn = tl.linearize(f, X)
    derivative = lambda t: tl.jvp(f, (X,), (t,))[1]  # noqa: E731
    tangents = torch.stack([T, X, Y])
    torch.testing.assert_close(tl.vmap(jvp_fn)(tangents), torch.stack([*map(derivative, tangents)]))
    torch.testing.assert_close(tl.jacrev(jvp_fn)(T), tl.jacfwd(f)(X))
    torch.testing.assert_close(tl.jvp(jvp_fn, (T,), (X,))[1], derivative(X))


def test_linearize_nests_in_linearize():
    _, outer = tl.linearize(by_linearize(torch.exp), X)
    _, expected = tl.jvp(by_jvp(torch.exp), (X,), (T,))
    torch.testing.assert_close(outer(T), expected)


def test_plain_autograd_goes_through():
    x = X.clone().requires_grad_()
    _, jvp_fn = tl.linearize(torch.exp, x)
    (gradient,) = torch.autograd.grad(jvp_fn(T).sum(), x)
    torch.testing.assert_close(gradient, T * X.exp())


def test_constant_derivative_belongs_to_the_caller():
    _, jvp_fn = tl.linearize(lambda x: torch.ones(2), X)
    jvp_fn(T).add_(1)
    assert not jvp_fn(T).any()


def test_random_operators_draw_once():
    """The random draws do not depend on the tangents: the linear map is fixed."""
    _, jvp_fn = tl.linearize(lambda x: torch.rand(3) * x, X)
    assert torch.equal(jvp_fn(T), jvp_fn(T))


# Subclasses of tensors


class Holding(torch.Tensor):
    """Holds a tensor, and computes with it."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=held.device, strides=held.stride()
        )

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"Holding({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Named(torch.Tensor):
    """Has __torch_function__ enabled, the default for every subclass."""


def held(value):
    return getattr(value, "held", value)


ZEROS, ONES = torch.zeros(3), Holding(torch.ones(3))
# Each gives the derivative of a function at X along T.
KINDS = {
    "a primal that holds a tensor": lambda f: tl.linearize(f, Holding(X))[1](Holding(T)),
    "among others": lambda f: tl.linearize(lambda y, x: f(x), Y, Holding(X))[1](Y, Holding(T)),
    "with a plain tangent": lambda f: tl.linearize(f, Holding(X))[1](T),
    "a tangent that holds a tensor": lambda f: tl.linearize(f, X)[1](Holding(T)),
    "a captured one": lambda f: tl.linearize(lambda x: f(x) * ONES, X)[1](T),
    "one made inside": lambda f: tl.linearize(lambda x: f(Holding(ZEROS) + x), X)[1](T),
    "with functions of its own": lambda f: tl.linearize(f, X.as_subclass(Named))[1](T),
    "a parameter": lambda f: tl.linearize(f, nn.Parameter(X))[1](T).detach(),
}


@pytest.mark.parametrize("f", [torch.sin, lambda x: x.sin() * x, lambda x: x.sum() * x])
@pytest.mark.parametrize("call", KINDS.values(), ids=KINDS)
def test_subclasses(call, f):
    expected = tl.jvp(f, (X,), (T,))[1]
    for _ in range(3):
        junk = torch.full((3,), 7e30)  # contents of uninitialized memory
        del junk
        result = held(call(f)).as_subclass(torch.Tensor)
        torch.testing.assert_close(result, expected)


def test_subclass_primal_is_saved():
    point = Holding(X.clone())
    _, jvp_fn = tl.linearize(torch.exp, point)
    point.held.zero_()
    torch.testing.assert_close(jvp_fn(Holding(T)).held, T * X.exp())


# On several threads


@pytest.mark.sweep
def test_on_several_threads():
    errors, start = [], threading.Barrier(8)
    _, shared = tl.linearize(torch.sin, X)

    def work(n):
        start.wait()
        try:
            for i in range(20):
                x = X + n + i
                torch.testing.assert_close(tl.linearize(torch.sin, x)[1](T), T * x.cos())
                torch.testing.assert_close(shared(T + i), (T + i) * X.cos())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Misuse

WRONG_TANGENTS = {
    "too few": lambda f: f(),
    "too many": lambda f: f(T, T),
    "another structure": lambda f: f([T]),
    "another shape": lambda f: f(T[:2]),
    "a shape that broadcasts": lambda f: f(T[:1]),
    "another dtype": lambda f: f(T.double()),
    "another device": lambda f: f(T.to("meta")),
    "no tensor": lambda f: f(2.0),
}


@pytest.mark.parametrize("call", WRONG_TANGENTS.values(), ids=WRONG_TANGENTS)
def test_tangents_unlike_the_primals_are_refused(call):
    _, jvp_fn = tl.linearize(torch.sin, X)
    with pytest.raises(RuntimeError, match=r"torchlayers: linearize: "):
        call(jvp_fn)


WRONG_FUNCTIONS = {
    "no primals": (lambda: X, ()),
    "an integer primal": (lambda x: x * 2, (X.long(),)),
    "a primal that is no tensor": (lambda x, n: x * n, (X, 2.0)),
    "a result that is no tensor": (lambda x: (x, 2.0), (X,)),
    "writing to a captured tensor": (functools.partial(torch.Tensor.add_, X.clone()), (X,)),
}


@pytest.mark.parametrize(("f", "primals"), WRONG_FUNCTIONS.values(), ids=WRONG_FUNCTIONS)
def test_functions_that_have_no_derivative_are_refused(f, primals):
    before = ambient()
    with pytest.raises((RuntimeError, ValueError), match=r"torchlayers: "):
        tl.linearize(f, *primals)
    assert ambient() == before


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x * (torch.rand(6, dtype=x.dtype) > 0.5),
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: x * torch.empty_like(x).bernoulli_(0.5).mul_(3),
        lambda x: x[torch.multinomial(x.detach() + 1, 6)],
        lambda x: tl.vmap(lambda x: x * torch.normal(x, 0.5), randomness="same")(x),
        lambda x: tl.vmap(lambda x: x * torch.poisson(x.exp()), randomness="same")(x),
        lambda x: tl.vmap(lambda x: x * torch.bernoulli(x.sigmoid()), randomness="same")(x),
        lambda x: tl.vmap(lambda x: x * torch.bernoulli(x.sigmoid()), randomness="different")(x),
        lambda x: tl.vmap(lambda x: x * torch.normal(x, 0.5), randomness="keyed")(x),
        lambda x: tl.vmap(
            lambda x: x * tl.vmap(torch.poisson, randomness="same")(x.exp()), randomness="same"
        )(x.view(2, 3)),
    ],
    ids=[
        "rand",
        "dropout",
        "in place",
        "multinomial",
        "normal, the same",
        "poisson, the same",
        "bernoulli, the same",
        "bernoulli, different",
        "normal, keyed",
        "in two vmaps",
    ],
)
def test_the_linear_map_draws_what_the_output_drew(draw):
    x = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    torch.manual_seed(0)
    draw(x)
    after_one_run = torch.get_rng_state()
    torch.manual_seed(0)
    output, push = tl.linearize(draw, x)
    assert torch.equal(torch.get_rng_state(), after_one_run)
    for _ in range(2):  # linear, so applying it to the point gives the output
        torch.testing.assert_close(push(x), output)
    assert torch.equal(torch.get_rng_state(), after_one_run)


WRITTEN = {
    "rrelu": lambda x: nn.functional.rrelu(3 * x, training=True),
    "dropout": lambda x: nn.functional.dropout(3 * x),
    "randn": lambda x: torch.randn_like(x) * x,
    "leaky_relu": lambda x: nn.functional.leaky_relu(3 * x),
}
WRITES = {
    "sin_": lambda y, x: y.sin_(),
    "mul_": lambda y, x: y.mul_(x),
    "a view": lambda y, x: y.view(-1)[:1].mul_(2) + y,
}


@pytest.mark.parametrize("made", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_what_was_drawn_is_not_repeated_by_calls(made, write):
    x = -torch.ones(3, dtype=torch.float64)

    def f(x):
        return write(made(x), x)

    torch.manual_seed(0)
    value, jvp_fn = tl.linearize(f, x)
    torch.manual_seed(0)
    expected = tl.jvp(f, (x,), (x.cos(),))
    for _ in range(2):
        torch.testing.assert_close((value, jvp_fn(x.cos())), expected)


def with_a_new_parameter(x):
    weight = torch.nn.Parameter(torch.ones_like(x))
    with torch.no_grad():
        weight.add_(1)  # as the initialization of a module does
    return (weight * x).sin()


def with_new_data(x):
    weight = torch.nn.Parameter(torch.ones_like(x))
    first = weight * x
    weight.data[1:].mul_(3)
    return first * weight


@pytest.mark.parametrize("f", [with_a_new_parameter, with_new_data])
@pytest.mark.parametrize("nest", [lambda f: f, lambda f: tl.grad(lambda x: f(x).sum())])
def test_a_parameter_constructed_inside_is_new_at_each_call(f, nest):
    f = nest(f)
    x, t = torch.linspace(0.1, 1, 3), torch.ones(3)
    expected = tl.jvp(f, (x,), (t,))
    value, along = tl.linearize(f, x)
    for _ in range(3):
        torch.testing.assert_close((value, along(t)), expected)
