"""Which pass runs backward, torchlayers' or torch's engine, and that results do not depend on
it."""

import gc
import threading
import weakref

import pytest
import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn

import torchlayers as tl
from benchmarks.peak import peak_bytes
from tests.support.calls import ambient
from torchlayers.errors import NotScalarError

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
Y = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
Z = torch.complex(X, Y)
ONE = torch.ones((), dtype=torch.float64)

RAN: list[str] = []  # which pass called the rule of probe


@torch.library.custom_op("torchlayers_pass::probe", mutates_args=())
def probe(x: Tensor) -> Tensor:
    return x.clone()


probe.register_vmap(lambda info, in_dims, x: (probe(x), in_dims[0]))
tl.extend.jvp_rule(probe)(lambda primals, tangents: (probe(*primals), tangents[0]))


@tl.extend.vjp_rule(probe)
def probe_vjp(g, primals, result):
    RAN.append("pass" if torch._C._current_graph_task_id() == -1 else "engine")
    return g


def ran(call):
    """The result of the call, and which passes ran its backwards."""
    RAN.clear()
    before = ambient()
    result = call()
    assert ambient() == before
    return result, set(RAN)


class Cube(torch.autograd.Function):
    """Has twice the gradient of the cube, which shows that its backward was used."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 6 * ctx.saved_tensors[0] ** 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 6 * ctx.saved_tensors[0] ** 2 * t


def hooked(x, mark):
    y = mark(x).sin()
    y.register_hook(lambda g: 2 * g)
    return (y * x).sum()


def hooked_argument(x, mark):
    x.register_hook(lambda g: 3 * g)
    return (mark(x) * x).sum()


def node_hooked(x, mark):
    y = mark(x).exp()
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(g * 2 for g in inputs))
    return y.sum()


def node_hooked_before(x, mark):
    y = mark(x).exp()
    y.grad_fn.register_prehook(lambda gradients: tuple(g * 2 for g in gradients))
    return y.sum()


# (a function that marks its argument, the pass that runs it)
WATCHED = {
    "plain": (lambda x, mark: (mark(x).sin() * x).sum(), "pass"),
    "with a node of torch's own": (
        lambda x, mark: torch.linalg.vector_norm(mark(x)) * x[0],
        "pass",
    ),
    "views": (lambda x, mark: (mark(x)[:2].view(-1) * x[1:]).sum(), "pass"),
    "a view written to": (
        lambda x, mark: ((y := mark(x) * 1)[:2].mul_(x[0]), y.sin().sum())[1],
        "pass",
    ),
    "a result written to": (lambda x, mark: mark(x).sin().mul_(x).add_(1).sum(), "pass"),
    "a hook": (hooked, "pass"),
    "a hook on the argument": (hooked_argument, "pass"),
    "a hook on a node": (node_hooked, "pass"),
    "a hook before a node": (node_hooked_before, "pass"),
    "an autograd.Function": (lambda x, mark: Cube.apply(mark(x)).sum(), "engine"),
}
NESTS = {
    "grad": lambda tf, f: tf.grad(f)(X),
    "vjp": lambda tf, f: tf.vjp(f, X)[1](ONE),
    "grad(grad)": lambda tf, f: tf.grad(lambda x: (tf.grad(f)(x) * Y).sum())(X),
    "grad(vjp)": lambda tf, f: tf.grad(lambda x: (tf.vjp(f, x)[1](ONE)[0] * Y).sum())(X),
    "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(f), (X,), (Y,)),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(f))(torch.stack([X, Y])),
    "jacrev": lambda tf, f: tf.jacrev(f)(X),
}


watched = pytest.mark.parametrize(("f", "who"), WATCHED.values(), ids=WATCHED.keys())
nests = pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())


def marked(f, mark):
    return lambda x: f(x, mark)


@nests
@watched
def test_both_ways_give_what_torch_func_gives(f, who, nest):
    found, ran_by = ran(lambda: nest(tl, marked(f, probe)))
    torch.testing.assert_close(found, nest(torch.func, marked(f, torch.clone)))
    assert who in ran_by


@pytest.mark.parametrize("nest", ["grad", "vjp", "jacrev"])
@watched
def test_expected_pass_runs_backward(f, who, nest):
    _, ran_by = ran(lambda: NESTS[nest](tl, marked(f, probe)))
    assert ran_by == {who}


def test_a_gradient_retained_outside_is_there():
    x = X.clone().requires_grad_()
    y = x * 1
    y.retain_grad()
    tl.grad(lambda x: (x.sin() * y).sum())(X).sum().backward()
    torch.testing.assert_close(y.grad, X.cos())


def inner(create_graph, of=lambda x: x.sin() * x * x):
    def f(x):
        (g,) = torch.autograd.grad(of(x).sum(), x, create_graph=create_graph)
        return (g * x.exp()).sum()

    return f


@pytest.mark.parametrize("create_graph", [False, True])
@nests
def test_a_gradient_taken_inside_by_torch(nest, create_graph):
    """It is differentiated in any case; torch.func does so with create_graph alone."""
    expected = nest(torch.func, inner(create_graph=True))
    torch.testing.assert_close(nest(tl, inner(create_graph)), expected)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_taken_inside_is_differentiated(create_graph):
    def expected(x):
        return (2 * x * x.sin() + x * x * x.cos()) * x.exp()

    whole = torch.func.grad(lambda x: expected(x).sum())(X)
    torch.testing.assert_close(tl.grad(inner(create_graph))(X), whole)


def test_two_gradients_inside_one_another():
    def f(x):
        (g,) = torch.autograd.grad(x.exp().prod(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), x, create_graph=True)
        return (h * x).sum()

    for nest in ("grad", "grad(grad)", "vmap(grad)"):
        torch.testing.assert_close(NESTS[nest](tl, f), NESTS[nest](torch.func, f))


def test_vjp_fn_is_called_many_times():
    _, vjp_fn = tl.vjp(lambda x: x.sin() * x.sum(), X)
    expected = torch.func.vjp(lambda x: x.sin() * x.sum(), X)[1]
    for g in (X, Y, X, X * 0):
        torch.testing.assert_close(vjp_fn(g), expected(g))


SECOND = "backward through the graph a second time"


@pytest.mark.parametrize(
    "f",
    [torch.sin, lambda x: x * x, torch.linalg.vector_norm, lambda x: x[1:].exp()],
    ids=["sin", "mul", "vector_norm", "view"],
)
def test_a_graph_that_is_not_retained_is_pulled_back_once(f):
    y, vjp_fn = tl.vjp(f, X)
    first = vjp_fn(torch.ones_like(y), retain_graph=False)
    torch.testing.assert_close(first, torch.func.vjp(f, X)[1](torch.ones_like(y)))
    with pytest.raises(RuntimeError, match=SECOND):
        vjp_fn(torch.ones_like(y))


def test_a_graph_inside_is_kept_for_the_gradient_around():
    def f(x):
        y = x.sin()
        torch.autograd.grad(y.sum(), x)
        torch.autograd.grad(y.sum(), x)
        return y.sum()

    torch.testing.assert_close(tl.grad(f)(X), X.cos())
    with pytest.raises(RuntimeError, match=SECOND):
        torch.func.grad(f)(X)


def test_a_graph_that_needs_nothing_is_pulled_back_again():
    _, vjp_fn = tl.vjp(lambda x: x + x, X)
    assert torch.equal(vjp_fn(Y, retain_graph=False)[0], 2 * Y)


def on_threads(work, count=4):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_vjp_fn_is_called_on_several_threads_at_once():
    def f(x):
        y = x.sin()
        for _ in range(30):
            y = (y * x + 1).tanh()
        return y

    _, vjp_fn = tl.vjp(f, X)
    cotangents = [X * i for i in range(4)]
    expected = [vjp_fn(g) for g in cotangents]
    barrier = threading.Barrier(4)

    def work(i):
        barrier.wait()
        for _ in range(20):
            torch.testing.assert_close(vjp_fn(cotangents[i]), expected[i])

    on_threads(work)


def test_gradients_on_several_threads_at_once():
    def work(i):
        for _ in range(20):
            torch.testing.assert_close(tl.grad(lambda x: (x**i).sum())(X), i * X ** (i - 1))

    on_threads(work)


def test_result_of_another_thread_is_a_constant():
    def f(x):
        parts = [x.sin()]
        on_threads(lambda _: parts.append(x.exp()), count=1)
        return sum(part.sum() for part in parts)

    torch.testing.assert_close(tl.grad(f)(X), torch.func.grad(f)(X))


COTANGENTS = {
    "vmap": lambda tf, pull: tf.vmap(pull)(torch.stack([X, Y])),
    "grad": lambda tf, pull: tf.grad(lambda g: pull(g).sin().sum())(Y),
    "jvp": lambda tf, pull: tf.jvp(pull, (X,), (Y,)),
    "jacrev": lambda tf, pull: tf.jacrev(pull)(X),
    "vmap(grad)": lambda tf, pull: tf.vmap(tf.grad(lambda g: pull(g).sin().sum()))(
        torch.stack([X, Y])
    ),
}


@pytest.mark.parametrize("nest", COTANGENTS.values(), ids=COTANGENTS.keys())
@watched
def test_cotangents_of_another_transform(f, who, nest):
    """vjp_fn is linear in its cotangents, which may belong to any transform."""

    def result(tf, mark):
        _, vjp_fn = tf.vjp(lambda x: marked(f, mark)(x) * x, X)
        return nest(tf, lambda g: vjp_fn(g)[0])

    torch.testing.assert_close(result(tl, probe), result(torch.func, torch.clone))


# Functions and their arguments; torch.func gives the same.
CALLS = {
    "an argument that is not used": (lambda x, y: x.sin(), (X, Y)),
    "no argument is used": (lambda x, y: X.sin(), (X, Y)),
    "the output is the argument": (lambda x: x, (X,)),
    "the output is a view of it": (lambda x: x[1:], (X,)),
    "the output is one of two arguments": (lambda x, y: (y, x * y), (X, Y)),
    "the same tensor for two arguments": (lambda x, y: x * x.sin() * y, (X, X)),
    "the same output twice": (lambda x: ((y := x.sin()), y), (X,)),
    "several outputs": (lambda x, y: (x * y, {"a": [x.exp(), y.sum()]}), (X, Y)),
    "an output that depends on nothing": (lambda x: (x.sin(), torch.ones(2)), (X,)),
    "float32 with float64": (lambda x, y: x * y, (X.float(), Y)),
    "float64 and back": (lambda x: x.double().sin().float() * 2, (X.float(),)),
    "bfloat16 inside": (lambda x: (x.bfloat16() * 2).float() + x, (X.float(),)),
    "complex inside": (lambda x, y: torch.complex(x, y).exp().abs(), (X, Y)),
    "real part of a product": (lambda x: (x * Z * Z).real, (X,)),
    "complex": (lambda z: z * z.conj() * z.sin(), (Z,)),
    "complex with real": (lambda z, x: z * x + x**2 / z, (Z, X)),
    "complex to real": (lambda z: z.abs() + z.angle() + z.imag, (Z,)),
    "broadcasting": (lambda x, y: x[:, None] * y + y[None].sin(), (X, Y)),
    "broadcasting a number": (lambda x, y: x.sum() * y / x, (X, Y)),
    "broadcasting a row": (lambda x, y: x * y + y, (X.expand(2, 3).clone(), Y[:1])),
    "a matrix product": (lambda x, y: torch.outer(x, y) @ x, (X, Y)),
    "an empty tensor": (lambda x: x[:0] * 2, (X,)),
    "no_grad inside": (lambda x: x * no_grad(lambda: x.sin()), (X,)),
    "all under no_grad": (lambda x: no_grad(lambda: x.sin()), (X,)),
    "detached": (lambda x: x * x.sin().detach(), (X,)),
    "recording again under no_grad": (lambda x: no_grad(lambda: x * enable_grad(x.sin)), (X,)),
    "a sort by indices": (lambda x: x[x.argsort()] * x.argmax(), (X,)),
    "one of several results": (lambda x: x.sort().values * x.max(0).values, (X,)),
    "parameters outside": (lambda x: x * LEAF, (X,)),
    "a Python number": (lambda x: 2 * x - 1 / (x + 3), (X,)),
    "many uses": (lambda x: sum(x * i for i in range(50)), (X,)),
}
LEAF = torch.ones(3, dtype=torch.float64, requires_grad=True)


def no_grad(f):
    with torch.no_grad():
        return f()


def enable_grad(f):
    with torch.enable_grad():
        return f()


def pulled_back(tf, f, arguments):
    output, vjp_fn = tf.vjp(f, *arguments)
    cotangents = torch.utils._pytree.tree_map(lambda y: torch.ones_like(y) * 0.7, output)
    return output, vjp_fn(cotangents)


calls = pytest.mark.parametrize(("f", "arguments"), CALLS.values(), ids=CALLS.keys())


@calls
def test_a_call_is_pulled_back_as_by_torch_func(f, arguments):
    found = pulled_back(tl, f, arguments)
    torch.testing.assert_close(found, pulled_back(torch.func, f, arguments))
    assert [g.dtype for g in found[1]] == [x.dtype for x in arguments]
    assert [g.shape for g in found[1]] == [x.shape for x in arguments]


@calls
def test_a_call_is_pulled_back_under_no_grad(f, arguments):
    with torch.no_grad():
        found = pulled_back(tl, f, arguments)
        torch.testing.assert_close(found, pulled_back(torch.func, f, arguments))


@calls
def test_a_call_is_pulled_back_twice(f, arguments):
    def second(tf):
        def squares(*arguments):
            gradients = pulled_back(tf, f, arguments)[1]
            return sum((g * g.conj()).real.sum().double() for g in gradients)

        return tf.grad(squares, argnums=tuple(range(len(arguments))))(*arguments)

    torch.testing.assert_close(second(tl), second(torch.func))


def test_plain_autograd_differentiates_the_result():
    for tf in (tl, torch.func):
        x = X.clone().requires_grad_()
        (tf.grad(lambda x: (x.sin() * LEAF).sum())(x) * Y).sum().backward()
        torch.testing.assert_close(x.grad, -X.sin() * Y)
        torch.testing.assert_close(LEAF.grad, X.cos() * Y)
        LEAF.grad = None


@pytest.mark.parametrize(
    "aux", [torch.argmax, torch.argsort, lambda x: x.sort(), lambda x: (x > 0, x.sin())]
)
def test_aux_needs_no_gradient(aux):
    def gradient(tf):
        return tf.grad(lambda x: ((x * x).sum(), aux(x)), has_aux=True)(X)

    torch.testing.assert_close(gradient(tl), gradient(torch.func))


def test_a_complex_value_has_no_gradient():
    with pytest.raises(NotScalarError, match="must return a real tensor"):
        tl.grad(lambda z: z.sum())(Z)
    assert tl.current_stack() == ()


LONG = 100_000


def test_a_long_chain_is_pulled_back_and_let_go():
    """Neither the pass nor freeing the graph uses one stack frame per node."""

    def chain(x):
        for _ in range(LONG):
            x = -x
        return x

    def work(_):
        assert torch.equal(tl.vjp(chain, X)[1](Y)[0], Y)
        assert torch.equal(tl.grad(lambda x: chain(x).sum())(X), torch.ones_like(X))
        tl.vjp(chain, X)  # its graph is never pulled back

    threading.stack_size(1 << 20)
    try:
        on_threads(work, count=1)
    finally:
        threading.stack_size(0)


def test_a_long_chain_that_saves_is_let_go():
    def chain(x):
        for _ in range(LONG // 10):
            x = x.sin() * x
        return x.sum()

    assert tl.grad(chain)(X).isfinite().all()


def test_saved_tensors_are_freed_during_the_pass():
    freed = []

    @torch.library.custom_op("torchlayers_pass::last", mutates_args=())
    def last(x: Tensor) -> Tensor:
        return x.clone()

    tl.extend.vjp_rule(last)(lambda g, primals, result: freed.append(reference() is None) or g)
    made = []  # created outside of f, so that the node saves it unwrapped

    def f(x):
        return (last(x) * made.pop()).sum()

    def factor():
        nonlocal reference
        made.append(X * 2)
        reference = weakref.ref(made[0])

    reference = None
    factor()
    tl.grad(f)(X)
    factor()
    _, vjp_fn = tl.vjp(f, X)
    vjp_fn(ONE)
    vjp_fn(ONE, retain_graph=False)
    assert freed == [True, False, True]


def weights(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def chain_of(count, size):
    x = torch.linspace(0.5, 1.0, size)

    def loss(x):
        y = x
        for i in range(count // 2):
            y = (y * x) if i % 2 else y.sin() + 1
        return y.sum()

    return loss, (x,)


def network():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def loss(values):
        return F.cross_entropy(torch.func.functional_call(module, values, (images,)), labels)

    return loss, (weights(module),)


@pytest.mark.parametrize(
    "made", [lambda: chain_of(2000, 1000), network], ids=["2000 operators", "network"]
)
def test_grad_holds_no_more_memory_than_plain_autograd(made):
    loss, arguments = made()

    def plain():
        leaves = torch.utils._pytree.tree_map(lambda x: x.detach().requires_grad_(), arguments)
        flat = torch.utils._pytree.tree_leaves(leaves)
        return torch.autograd.grad(loss(*leaves), flat)

    assert peak_bytes(lambda: tl.grad(loss)(*arguments)) <= peak_bytes(plain)


def test_a_graph_is_let_go_with_its_vjp_fn():
    _, vjp_fn = tl.vjp(lambda x: x.sin().exp() * x, X)
    vjp_fn(Y)
    reference = weakref.ref(vjp_fn)
    gc.disable()
    try:
        del vjp_fn
        assert reference() is None
    finally:
        gc.enable()


def escaped(tf):
    """The argument and a result computed from it, after the transform."""
    kept = []

    def f(x):
        kept.extend([x, x.sin()])
        return x.exp().sum()

    tf.grad(f)(X)
    return kept


def test_an_escaped_tensor_is_as_in_torch_func():
    ours, theirs = escaped(tl), escaped(torch.func)
    torch.testing.assert_close([y + 0 for y in ours], [y + 0 for y in theirs])
    torch.testing.assert_close(tl.grad(lambda x: (x * ours[1]).sum())(X), X.sin())


def test_an_escaped_graph_is_as_in_torch_func():
    def pulled(tf):
        x, y = escaped(tf)
        return torch.autograd.grad(y, x, Y)[0] + 0

    torch.testing.assert_close(pulled(tl), pulled(torch.func))


@nests
def test_an_error_inside_leaves_the_stack_as_it_was(nest):
    def f(x):
        y = x.sin()
        raise ZeroDivisionError(y.shape)

    before = ambient()
    with pytest.raises(ZeroDivisionError):
        nest(tl, f)
    assert ambient() == before
    torch.testing.assert_close(tl.grad(lambda x: x.sin().sum())(X), X.cos())


class Sinh(torch.autograd.Function):
    """Its second derivative is computed by vjp, inside the engine's backward."""

    @staticmethod
    def forward(x):
        return x.sinh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return tl.vjp(lambda x: torch.cumprod(x.sinh().unsqueeze(0), 0).squeeze(0), x)[1](g)[0]


def test_a_pass_inside_the_engines_own_backward():
    """torch's nodes ask the engine which of their gradients are needed, and it answers for
    others."""
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Sinh.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, X.cosh())
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, X.sinh())
