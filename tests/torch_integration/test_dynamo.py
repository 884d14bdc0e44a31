"""torch.compile around our transforms, and inside them."""

import itertools
import threading

import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import by_vjp
from tests.support.torch_reports import REPORTED


def f(x):
    return x.sin() * x


TRANSFORMS = {
    "grad": lambda g: tl.grad(lambda x: g(x).sum()),
    "grad_and_value": lambda g: lambda x: tl.grad_and_value(lambda x: g(x).sum())(x)[0],
    "vjp": by_vjp,
    "jvp": lambda g: lambda x: tl.jvp(g, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda g: lambda x: tl.vmap(lambda s: g(s * x))(torch.tensor([1.0, 0.5])),
    "jacrev": lambda g: tl.jacrev(g),
    "jacfwd": lambda g: tl.jacfwd(g),
    "hessian": lambda g: tl.hessian(g),
    "functionalize": lambda g: tl.functionalize(g),
    "linearize": lambda g: lambda x: tl.linearize(g, x)[1](torch.ones_like(x)),
}
PAIRS = [
    pair
    for pair in itertools.product(TRANSFORMS, repeat=2)
    if pair != ("functionalize", "functionalize")  # rejected
]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


POINT = torch.tensor([0.5, -1.0, 2.0])


def assert_equal_compiled(function, backend="eager", x=POINT):
    expected = function(x)
    got = torch.compile(function, fullgraph=True, backend=backend)(x)
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=True):
        torch.testing.assert_close(one, other)


def times_a_square_made_in_no_grad(x):
    with torch.no_grad():
        square = x * x
    return (x * square).sum()


@pytest.mark.sweep
@pytest.mark.parametrize("transform", [tl.grad, tl.jacfwd, tl.jacrev, tl.hessian])
def test_no_grad_in_a_compiled_function_behaves_as_eagerly(transform):
    assert_equal_compiled(lambda x: transform(times_a_square_made_in_no_grad)(x))


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_transformed_function_compiles_without_a_graph_break(name, backend):
    assert_equal_compiled(TRANSFORMS[name](f), backend)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_function_that_transforms_compiles_without_a_graph_break(name):
    assert_equal_compiled(lambda x: TRANSFORMS[name](f)(x))


def breaking(x):
    y = x.exp()
    torch._dynamo.graph_break()
    return y.sin() * x


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_graph_break_inside_a_transform(name):
    """There torch.func's reverse mode fails (torch 2.13)."""
    inner = TRANSFORMS[name](breaking)
    for function in (inner, lambda x: inner(x.cos()) * 2):
        compiled = torch.compile(function, backend="eager")
        torch.testing.assert_close(compiled(POINT), function(POINT))
        torch.testing.assert_close(compiled(2 * POINT), function(2 * POINT))
    assert tl.current_stack() == ()


@pytest.mark.sweep
@pytest.mark.parametrize("outer,inner", PAIRS)
def test_nests_of_two_compile_without_a_graph_break(outer, inner):
    assert_equal_compiled(TRANSFORMS[outer](TRANSFORMS[inner](f)))


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(
    "nest",
    [
        "jvp jvp jvp",
        "jvp jvp vmap",
        "jvp jacfwd grad",
        "vmap jacfwd vmap",
        "vmap linearize grad",
        "jacfwd jacfwd vmap",
        "hessian jvp vmap",
        "grad jacfwd jvp",
        "jacrev hessian jvp",
    ],
)
def test_nests_of_three_with_forward_modes(nest):
    """NOTE [Forward mode in Dynamo]."""
    function = f
    for name in reversed(nest.split()):
        function = TRANSFORMS[name](function)
    assert_equal_compiled(function, "aot_eager")


FORWARD = {
    "values and aux": lambda x: tl.jvp(
        lambda x: ({"y": x.sin(), "i": x.argmax()}, x.cos()), (x,), (x,), has_aux=True
    ),
    "integers": lambda x: tl.jvp(torch.argsort, (x,), (x,)),
    "an output without the primal": lambda x: tl.jvp(lambda y: x * 2, (x,), (x,)),
    "two primals": lambda x: tl.jvp(torch.mul, (x, x.cos()), (x.sin(), x)),
    "a complex one": lambda x: torch.view_as_real(
        tl.jvp(lambda z: z.conj() * z * z, (torch.complex(x, x),), (torch.complex(x, -x),))[1]
    ),
    "a tangent of another dtype": lambda x: tl.jvp(torch.sin, (x,), (x.double(),)),
    "a Jacobian of another dtype": lambda x: tl.jacfwd(lambda x: x.double() * x)(x),
    "a Jacobian by two, with aux": lambda x: tl.jacfwd(
        lambda x, y: ([x * y, x.sum()], x.cos()), (0, 1), has_aux=True
    )(x, x.sin()),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_inside_another_transform(name):
    assert_equal_compiled(tl.vmap(FORWARD[name]), x=torch.tensor([[0.5, -1.0], [2.0, 0.1]]))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_compiled_function_works_inside_a_transform(name):
    x = torch.tensor([0.5, -1.0, 2.0])
    expected = TRANSFORMS[name](f)(x)
    got = TRANSFORMS[name](torch.compile(f, backend="aot_eager"))(x)
    torch.testing.assert_close(got, expected)
    assert tl.current_stack() == ()


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("name", REPORTED)
def test_reported_torch_func_failures_compile(name):
    function, x = REPORTED[name]
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, function(x))


def test_chunks_found_by_measuring_are_refused_under_compile():
    with pytest.raises(Exception, match=r"does not work in torch\.compile"):
        torch.compile(tl.vmap(f, chunk_size="auto"), fullgraph=True, backend="eager")(torch.ones(3))


@pytest.mark.parametrize("compiled", [False, True])
def test_nonstrict_trace_puts_our_recording_into_dynamos_graph(compiled):
    second = tl.hessian(lambda x: (x @ x).sin())
    traced = torch._dynamo.nonstrict_trace(
        tl.compile(second, backend="replay") if compiled else second
    )
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph

    x = torch.tensor([0.5, -1.0, 2.0])
    around = aot_autograd(fw_compiler=backend)
    got = torch.compile(lambda x: traced(x) * 2, fullgraph=True, backend=around)(x)
    torch.testing.assert_close(got, 2 * second(x))
    assert any(node.target is torch.ops.aten.cos.default for node in seen[0].graph.nodes)


def test_a_compiled_function_of_ours_inside_torch_compile():
    assert_equal_compiled(tl.compile(tl.hessian(f), backend="replay"))


def test_overlapping_threads_leave_torch_compile_enabled():
    """Of two threads that disable compiling, the first to start is the first to finish."""
    both, first_gone = threading.Barrier(2), threading.Event()

    def first(x):
        slow.start()
        both.wait()
        return x.sin()

    def second(x):
        both.wait()
        first_gone.wait()
        return x.cos()

    slow = threading.Thread(target=tl.functionalize(second), args=(torch.ones(2),))
    tl.functionalize(first)(torch.ones(2))
    first_gone.set()
    slow.join()
    assert torch._dynamo.eval_frame._stance.stance == "default"


class Powers(torch.autograd.Function):
    """The square and the cube, and a number without a derivative."""

    @staticmethod
    def forward(x, y):
        return x**2 * y, x**3, x.new_ones(())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, g, h, _):
        x, y = ctx.saved_tensors
        return 2 * g * x * y + 3 * h * x**2, g * x**2


def of_powers(x, y):
    square, cube, one = Powers.apply(x, y)
    return (square * y + cube + one).sum()


def test_a_function_that_dynamo_has_compiled_has_a_second_derivative():
    """Its graphs are called by torch's operator of this name."""

    def by_hand(x, y):
        return (x**2 * y * y + x**3 + 1).sum()

    x, y = POINT, POINT.flip(0)
    compiled = torch.compile(of_powers, backend="eager")
    for nest in (
        lambda f: tl.vmap(tl.grad(f, (0, 1)))(x[:, None], y[:, None]),
        lambda f: tl.jacrev(tl.grad(f, (0, 1)), (0, 1))(x, y),
    ):
        torch.testing.assert_close(nest(compiled), nest(by_hand))


class OldCube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2


def test_dynamo_does_not_walk_into_our_rules_of_functions():
    compiled = torch.compile(lambda x: OldCube.apply(x), backend="eager")
    torch.testing.assert_close(tl.vmap(compiled)(POINT), POINT**3)


def test_a_checkpoint_made_in_a_compiled_function():
    def cubes(x):
        return tl.checkpoint(lambda y: y**3)(x).sum()

    compiled = torch.compile(cubes, backend="eager")
    slope = 3 * POINT**2
    torch.testing.assert_close(compiled(POINT), (POINT**3).sum())
    torch.testing.assert_close(tl.grad(compiled)(POINT), slope)
    torch.testing.assert_close(torch.compile(tl.grad(cubes), backend="eager")(POINT), slope)


@torch._dynamo.disable
def not_traced(x):
    return x.sin()


cube = tl.custom_vjp(lambda x: x**3)
cube.defvjp(lambda x: (x**3, x), lambda x, g: (g * 3 * x**2,))
PARTS = {
    "one graph": lambda x: x.sin() * x,
    "a graph break": lambda x: not_traced(x * 2) * x,
    "custom_vjp": lambda x: cube(x * 2) * x,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PARTS)
def test_a_compiled_function_takes_what_a_grad_has_computed(name, backend):
    part = PARTS[name]
    compiled = torch.compile(part, backend=backend)

    def gradient(g):
        return tl.grad(lambda x: (g(x * x) * POINT).sum())

    for derivative, x in (
        (gradient, POINT),
        (lambda g: tl.jacrev(gradient(g)), POINT),
        (lambda g: tl.vmap(gradient(g)), POINT.repeat(2, 1)),
    ):
        torch.testing.assert_close(derivative(compiled)(x), derivative(part)(x))
