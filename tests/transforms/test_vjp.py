"""vjp: same results as torch.func's."""

import functools

import pytest
import torch
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, level_of, structures

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([1.5, -1.0, 3.0])
C = torch.tensor([2.0, -1.0, 0.5])


def pulled_back(f, *primals, cotangents=None, **options):
    """A call: the output, the cotangents of the primals, and the aux if there is one."""

    def call(tf):
        output, vjp_fn, *aux = tf.vjp(f, *primals, **options)
        given = pytree.tree_map(torch.ones_like, output) if cotangents is None else cotangents
        return output, vjp_fn(given), aux

    return call


def test_cotangents_are_pulled_back():
    output, (cotangent,), _ = agree(pulled_back(torch.sin, X, cotangents=C))
    torch.testing.assert_close(output, X.sin())
    torch.testing.assert_close(cotangent, C * X.cos())


def test_each_primal_gets_its_cotangent():
    agree(pulled_back(lambda x, y: x.outer(y), X, Y[:2], cotangents=torch.rand(3, 2)))


@structures
def test_primals_may_be_structures(pack):
    def f(tree, z):
        return functools.reduce(torch.mul, pytree.tree_leaves(tree)) * z

    agree(pulled_back(f, pack(X, Y), C, cotangents=C))


@structures
def test_outputs_may_be_structures(pack):
    agree(pulled_back(lambda x: pack(x.sin(), x.sum()), X, cotangents=pack(C, C[0])))


@structures
def test_aux_is_passed_through(pack):
    agree(pulled_back(lambda x: (x.sin(), pack(x * 2, Y)), X, has_aux=True))


# torch.func rejects an aux that holds anything but tensors.
@pytest.mark.parametrize("aux", [1, "name", None, [1.0, {"a": None}]])
def test_aux_may_be_anything(aux):
    assert tl.vjp(lambda x: (x, aux), X, has_aux=True)[2] == aux


def test_an_output_and_its_aux_carry_no_wrapper():
    output, _, aux = tl.vjp(lambda x: (x * 2, [x * 3, x]), X, has_aux=True)
    assert [level_of(t) for t in (output, *aux)] == [-1, -1, -1]
    assert aux[1] is X


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x * 2,
        lambda x, y: Y * 2,
        lambda x, y: (x * 2, Y),
        lambda x, y: (x.detach(), y.detach()),
        lambda x, y: torch.zeros(2),
        lambda x, y: (x, x),
        lambda x, y: (y, x.view(3), x * y),
    ],
    ids=[
        "unused primal",
        "captured",
        "half captured",
        "detached",
        "fresh",
        "the primal twice",
        "primals and views",
    ],
)
def test_outputs_that_do_not_depend_on_a_primal_pull_back_zeros(f):
    agree(pulled_back(f, X, Y))


def test_a_function_without_primals():
    agree(pulled_back(lambda: X * 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex128])
def test_primals_of_any_dtype(dtype):
    agree(pulled_back(lambda x: x * x, X.to(dtype), cotangents=C.to(dtype)))


@pytest.mark.parametrize(
    "f",
    [torch.abs, torch.real, lambda z: torch.view_as_real(z), lambda z: z.conj() * z],
)
def test_complex_primals(f):
    agree(pulled_back(f, torch.complex(X, Y)))


def test_a_complex_output_of_a_real_primal():
    agree(pulled_back(lambda x: torch.complex(x, x * x), X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_cotangents_are_converted_to_their_outputs_dtype(dtype):
    agree(pulled_back(torch.sin, X, cotangents=C.to(dtype)))


def test_the_pullback_can_be_called_many_times():
    def call(tf):
        _, vjp_fn = tf.vjp(torch.sin, X)
        return [vjp_fn(cotangent) for cotangent in (C, Y, torch.zeros(3), C)]

    agree(call)


def test_the_pullback_can_be_called_once_without_retain_graph():
    _, vjp_fn = tl.vjp(torch.sin, X)
    vjp_fn(C, retain_graph=False)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        vjp_fn(C)


@pytest.mark.parametrize("create_graph", [False, True])
def test_retain_graph_is_create_graph_where_it_is_none(create_graph):
    def call(tf):
        _, vjp_fn = tf.vjp(torch.sin, X)
        vjp_fn(C, retain_graph=None, create_graph=create_graph)
        try:
            return vjp_fn(C)
        except RuntimeError as error:
            assert "backward through the graph a second time" in str(error)
            return "refused"

    agree(call)


def test_retain_graph_and_create_graph_may_be_numbers():
    agree(lambda tf: tf.vjp(torch.sin, X)[1](C, 1, 0))


@pytest.mark.parametrize("create_graph", [None, False, True])
@pytest.mark.parametrize("grad_mode", [False, True])
def test_create_graph_is_grad_mode_unless_given(create_graph, grad_mode):
    def call(tf):
        x = X.clone().requires_grad_()
        _, vjp_fn = tf.vjp(lambda x: x**3, x)
        with torch.set_grad_enabled(grad_mode):
            (result,) = vjp_fn(C, create_graph=create_graph)
        return result, result.requires_grad

    agree(call)


def test_the_pullback_takes_its_options_by_position():
    agree(lambda tf: tf.vjp(torch.sin, X)[1](C, False, False))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("where", ["vjp", "pullback", "both"])
def test_a_mode_outside_holds_outside_only(mode, where):
    def call(tf):
        x = X.clone().requires_grad_()
        with mode() if where != "pullback" else torch.enable_grad():
            output, vjp_fn = tf.vjp(lambda x: x**3, x)
        with mode() if where != "vjp" else torch.enable_grad():
            return output, vjp_fn(C)

    agree(call)


def test_no_grad_inside_holds():
    def f(x):
        with torch.no_grad():
            c = x**2
        return x - c

    agree(pulled_back(f, X))


def test_the_pullback_can_be_batched():
    cotangents = torch.rand(5, 3)
    (rows,) = agree(lambda tf: tf.vmap(tf.vjp(torch.sin, X)[1])(cotangents))
    torch.testing.assert_close(rows, cotangents * X.cos())


def test_the_pullback_can_be_differentiated():
    def call(tf):
        _, vjp_fn = tf.vjp(lambda x: x**3, X)
        return tf.grad(lambda c: (vjp_fn(c)[0] ** 2).sum())(C)

    agree(call)


def test_the_pullback_made_and_used_inside_a_transform():
    def call(tf):
        def f(x):
            output, vjp_fn = tf.vjp(lambda y: y**3 * x, x)
            return (vjp_fn(output)[0] * x).sum()

        return tf.grad(f)(X), tf.vmap(f)(X), tf.jvp(f, (X,), (Y,))

    agree(call)


def test_the_second_derivative_by_vjp_of_vjp():
    def call(tf):
        def gradient(x):
            return tf.vjp(torch.sin, x)[1](C)[0]

        output, vjp_fn = tf.vjp(gradient, X)
        return output, vjp_fn(Y)

    _, (second,) = agree(call)
    torch.testing.assert_close(second, -X.sin() * C * Y)


def test_captured_tensors_can_be_differentiated_by_plain_autograd():
    def call(tf):
        w = Y.clone().requires_grad_()
        output, vjp_fn = tf.vjp(lambda x: x**2 * w, X)
        return torch.autograd.grad(output.sum() + vjp_fn(C)[0].sum(), w)

    agree(call)


def test_a_module_is_a_function():
    agree(pulled_back(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), X))


def test_defaults_of_the_function_hold():
    agree(pulled_back(lambda x, scale=4.0: x * scale, X))


@pytest.mark.parametrize("func", [torch.sum, lambda x: {"a": x.sum(0, keepdim=True)}])
def test_no_cotangent_stands_for_one_where_the_output_has_one_element(func):
    result = tl.vjp(func, torch.ones(3))[1](None)
    torch.testing.assert_close(result, (torch.ones(3),))


def test_no_cotangent_is_refused_where_the_output_has_more_elements():
    with pytest.raises(RuntimeError, match="torchlayers: vjp: cotangent 0 must be a tensor"):
        tl.vjp(torch.sin, torch.ones(3))[1](None)
