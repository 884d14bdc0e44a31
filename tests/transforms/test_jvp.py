"""jvp: same results as torch.func's."""

import functools
import subprocess
import sys

import pytest
import torch
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, level_of, structures

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([1.5, -1.0, 3.0])
T = torch.tensor([2.0, -1.0, 0.5])


def pushed(f, *primals, tangents=None, **options):
    """A call: the output, its tangents, and the aux if there is one."""
    given = pytree.tree_map(torch.ones_like, primals) if tangents is None else tangents
    return lambda tf: tf.jvp(f, primals, given, **options)


def test_tangents_are_pushed_forward():
    output, tangent = agree(pushed(torch.sin, X, tangents=(T,)))
    torch.testing.assert_close(output, X.sin())
    torch.testing.assert_close(tangent, T * X.cos())


def test_tangents_of_all_primals_add_up():
    _, tangent = agree(pushed(torch.mul, X, Y, tangents=(T, X)))
    torch.testing.assert_close(tangent, T * Y + X * X)


@structures
def test_primals_may_be_structures(pack):
    def f(tree, z):
        return functools.reduce(torch.mul, pytree.tree_leaves(tree)) * z

    agree(pushed(f, pack(X, Y), T, tangents=(pack(T, X), Y)))


@structures
def test_outputs_may_be_structures(pack):
    agree(pushed(lambda x: pack(x.sin(), x.sum()), X))


@structures
def test_aux_is_passed_through(pack):
    agree(pushed(lambda x: (x.sin(), pack(x * 2, Y)), X, has_aux=True))


# torch.func rejects an aux that holds anything but tensors.
@pytest.mark.parametrize("aux", [1, "name", None, [1.0, {"a": None}]])
def test_aux_may_be_anything(aux):
    assert tl.jvp(lambda x: (x, aux), (X,), (T,), has_aux=True)[2] == aux


def test_nothing_returned_carries_a_wrapper():
    output, tangent, aux = tl.jvp(lambda x: (x * 2, [x * 3, x]), (X,), (T,), has_aux=True)
    assert [level_of(t) for t in (output, tangent, *aux)] == [-1] * 4


INDEPENDENT = {
    "captured": lambda x, y: Y * 2,
    "half captured": lambda x, y: (x * 2, Y),
    "detached": lambda x, y: (x.detach(), y.detach() * 2),
    "fresh": lambda x, y: torch.zeros(2),
    "integer": lambda x, y: x.argmax(),
    "bool": lambda x, y: x > y,
}


@pytest.mark.parametrize("f", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_an_output_independent_of_the_primals_has_a_tangent_of_zeros(f):
    agree(pushed(f, X, Y))


@pytest.mark.parametrize("f", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_strict_refuses_an_output_independent_of_the_primals(f):
    for tf in (tl, torch.func):
        with pytest.raises(RuntimeError, match="independent of the"):
            pushed(f, X, Y, strict=True)(tf)


def test_strict_lets_dependent_outputs_pass():
    agree(pushed(lambda x, y: (x * y, [x, y.sum()]), X, Y, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_primals_of_any_dtype(dtype):
    agree(pushed(lambda x: x * x, X.to(dtype), tangents=(T.to(dtype),)))


@pytest.mark.parametrize("f", [torch.abs, torch.real, torch.view_as_real, lambda z: z.conj() * z])
def test_complex_primals(f):
    agree(pushed(f, torch.complex(X, Y), tangents=(torch.complex(T, X),)))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3)])
def test_primals_of_any_shape(shape):
    agree(pushed(lambda x: (x * x, x.sum()), torch.rand(shape)))


@pytest.mark.parametrize("primal", [torch.rand(3, 4).t(), torch.rand(8)[::2]])
def test_primals_of_any_layout(primal):
    agree(pushed(torch.sin, primal, tangents=(torch.rand(primal.shape),)))


def test_a_tangent_of_another_dtype_gives_one_of_the_results():
    _, expected = tl.jvp(torch.sin, (X,), (T,))
    _, found = tl.jvp(torch.sin, (X,), (T.double(),))
    torch.testing.assert_close(found, expected)


@pytest.mark.only_on("cpu")
@pytest.mark.parametrize("f", [lambda x: x * 2, torch.clone, lambda x: X])
def test_a_tangent_on_another_device_is_refused_only_where_an_operator_does(f):
    agree(lambda tf: [out.shape for out in tf.jvp(f, (X,), (T.to("meta"),))])


def test_an_expanded_primal_with_a_tangent_expanded_like_it():
    agree(pushed(torch.sin, X[0].expand(3), tangents=(T[0].expand(3),)))


def test_the_functions_own_errors_pass_whatever_the_tangents():
    class DeviceOfTypeError(RuntimeError):
        pass

    def f(x):
        raise DeviceOfTypeError("no device of this type")

    for tangent in (T, T.double(), T.to("meta")):
        with pytest.raises(DeviceOfTypeError):
            tl.jvp(f, (X,), (tangent,))


def test_a_primal_may_be_its_own_tangent():
    agree(pushed(lambda x: x**3, X, tangents=(X,)))


def test_the_same_primal_twice_is_two_primals():
    agree(pushed(torch.mul, X, X, tangents=(T, Y)))


def test_writing_to_fresh_tensors_and_to_primals():
    """A write to a primal is a write to the tensor passed in, as without jvp."""

    def call(tf):
        def f(x):
            y = torch.zeros(3)
            y[0] = x[1] * 2
            y.add_(x).mul_(x)
            return y, x.mul_(2)

        x = X.clone()
        return tf.jvp(f, (x,), (T.clone(),)), x

    agree(call)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_mode_outside_holds_outside_only(mode):
    def call(tf):
        x, t = X.clone().requires_grad_(), T.clone().requires_grad_()
        with mode():
            return tf.jvp(lambda x: x**3, (x,), (t,))

    agree(call)


def test_no_grad_inside_does_not_stop_tangents():
    def f(x):
        with torch.no_grad():
            return x**2

    _, tangent = agree(pushed(f, X, tangents=(T,)))
    torch.testing.assert_close(tangent, 2 * X * T)


def test_forward_mode_off_inside_stops_tangents():
    def f(x):
        with torch.autograd.forward_ad._set_fwd_grad_enabled(False):
            c = x**2
        return x * c

    _, tangent = agree(pushed(f, X, tangents=(T,)))
    torch.testing.assert_close(tangent, X**2 * T)


def test_forward_mode_off_between_two_jvps():
    def call(tf):
        def f(x):
            with torch.autograd.forward_ad._set_fwd_grad_enabled(False):
                return x * tf.jvp(lambda y: y**3, (x,), (T,))[1]

        return tf.jvp(f, (X,), (T,))

    agree(call)


def test_tangents_are_differentiable_by_plain_autograd_outside():
    def call(tf):
        x, t = X.clone().requires_grad_(), T.clone().requires_grad_()
        output, tangent = tf.jvp(lambda x: x**3, (x,), (t,))
        return torch.autograd.grad(output.sum() + tangent.sum(), (x, t))

    agree(call)


def test_jvp_of_jvp_of_jvp():
    x = torch.tensor(0.3)
    one = torch.ones(())

    def call(tf):
        def derivative(f):
            return lambda x: tf.jvp(f, (x,), (one,))[1]

        return derivative(derivative(derivative(torch.sin)))(x)

    torch.testing.assert_close(agree(call), -x.cos())


def test_tangents_of_two_levels_are_not_confused():
    """d/dx (x * d/dy (x + y)) is 1; it would be 2 if the levels shared their tangents."""
    one = torch.ones(())

    def f(x):
        return x * tl.jvp(lambda y: x + y, (one,), (one,))[1]

    assert tl.jvp(f, (one,), (one,))[1].item() == 1.0


def test_jvp_of_an_autograd_function():
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, t):
            return 3 * ctx.saved_tensors[0] ** 2 * t

    agree(pushed(Cube.apply, X, tangents=(T,)))
    agree(lambda tf: tf.vmap(lambda x, t: tf.jvp(Cube.apply, (x,), (t,)))(X, T))


def test_a_module_and_a_partial_are_functions():
    agree(pushed(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), X))
    agree(pushed(functools.partial(torch.sub, alpha=3), X, Y))


FRESH_PROCESS = """
import torch, torchlayers as tl
labels = torch.tensor([0, 1, 2, 0])
x = torch.arange(12.0).reshape(4, 3)
f = lambda x: torch.nn.functional.cross_entropy(x, labels)
value, tangent = tl.jvp(tl.grad(f), (x,), (x,))
print(tangent.shape)
"""


def test_formulas_that_torch_loads_at_the_first_dual_are_there():
    run = subprocess.run([sys.executable, "-c", FRESH_PROCESS], capture_output=True, text=True)
    assert run.stdout.strip() == "torch.Size([4, 3])", run.stderr


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2),
        lambda x: (x[1:].mul_(2), x)[1],
        lambda x: (x.view(-1), x[:2].sin_(), x.exp_())[0],
        lambda x: (torch._foreach_mul_([x], 2.0), x)[1],
    ],
    ids=["whole", "part", "view made before", "list"],
)
def test_the_callers_tangent_is_not_written_to(write):
    x, t = X.double(), T.double()
    step = 1e-6
    expected = (write(x + step * t) - write(x - step * t)) / (2 * step)
    given = t.clone()
    tangent = tl.jvp(write, (x.clone(),), (given,))[1]
    torch.testing.assert_close(tangent, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(given, t)
    assert given._version == 0


@pytest.mark.parametrize("vmap", [tl.vmap, torch.func.vmap])
def test_tangents_of_an_argument_that_starts_later_in_memory(vmap):
    """as_strided counts elements from the start of the memory, in each tangent too."""
    x = torch.arange(6.0).reshape(2, 3)[1]

    def f(x):
        return x.as_strided((2,), (2,), 3).sin()

    tangents = torch.stack([x, x.cos(), torch.ones_like(x)])
    pushed = vmap(lambda tangent: tl.jvp(f, (x,), (tangent,))[1])(tangents)
    torch.testing.assert_close(pushed, tangents[:, ::2] * x[::2].cos())
    torch.testing.assert_close(tl.laplacian(f)(x), -x[::2].sin())
