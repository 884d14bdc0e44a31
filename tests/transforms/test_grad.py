"""grad and grad_and_value: same results as torch.func's."""

import functools
import inspect

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, level_of, structures

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([1.5, -1.0, 3.0])


def product_of(tree):
    return functools.reduce(torch.mul, pytree.tree_leaves(tree)).sin().sum()


def product(x, y):
    return (x.sin() * y).sum()


@pytest.mark.parametrize(
    "argnums", [0, 1, -1, -2, (0,), (1,), (-1,), (0, 1), (1, 0), (-1, 0), True, False]
)
def test_argnums_count_as_python_counts(argnums):
    agree(lambda tf: tf.grad(product, argnums=argnums)(X, Y))


def test_a_tuple_of_one_argnum_gives_a_tuple_of_one_gradient():
    (gradient,) = tl.grad(product, argnums=(1,))(X, Y)
    torch.testing.assert_close(gradient, X.sin())


@structures
def test_gradients_have_the_structure_of_the_argument(pack):
    agree(lambda tf: tf.grad(product_of)(pack(X, Y)))


@structures
def test_several_structures_are_differentiated_at_once(pack):
    agree(
        lambda tf: tf.grad(lambda a, b, c: product_of((a, b, c)), argnums=(2, 0))(
            pack(X, Y), Y, [X]
        )
    )


@structures
def test_arguments_not_chosen_may_hold_anything(pack):
    def f(x, other, number, name):
        return product_of((x, other)) * number if name == "n" else None

    agree(lambda tf: tf.grad(f)(X, pack(X, Y), 2.0, "n"))


def test_arguments_not_chosen_are_wrapped_but_not_differentiated():
    seen = []

    def f(x, y, *, z):
        seen.extend((y, z))
        assert [level_of(t) for t in (x, y, z)] == [1, 1, 1]
        assert [t.requires_grad for t in (x, y, z)] == [True, False, False]
        return (x * y * z).sum()

    agree(lambda tf: tf.grad(f)(X, Y, z=X))


@structures
def test_keyword_arguments_may_be_structures(pack):
    agree(lambda tf: tf.grad(lambda x, *, z: product_of((x, z)))(X, z=pack(X, Y)))


def test_arguments_not_chosen_may_be_written_to():
    def call(tf):
        y, z = Y.clone(), Y.clone()

        def f(x, y, z):
            y.mul_(x)
            z[0] = 5.0
            return (x * y * z).sum()

        return tf.grad(f)(X, y, z=z), y, z

    agree(call)


def test_a_chosen_argument_may_be_written_to_where_autograd_allows_it():
    def f(x):
        y = x * 1
        y.mul_(x).add_(1)
        y[0] = x[1] * 3
        return y.sum()

    agree(lambda tf: tf.grad(f)(X))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.sum(),
        lambda x, y: torch.ones(()),
        lambda x, y: torch.tensor(1),  # an integer result, so there is nothing to differentiate
        lambda x, y: (x.detach() * y.detach()).sum(),
        lambda x, y: CAPTURED.sum(),
    ],
)
def test_unused_arguments_have_gradients_of_zeros(f):
    agree(lambda tf: tf.grad_and_value(f, argnums=(0, 1))(X, Y.double()))


CAPTURED = torch.ones(2)


def test_the_same_tensor_twice_is_two_arguments():
    agree(lambda tf: tf.grad(product, argnums=(0, 1))(X, X))


def test_a_captured_tensor_is_a_constant():
    agree(lambda tf: tf.grad(lambda x: (x * X).sum())(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_have_the_dtype_of_their_argument(dtype):
    x = X.to(dtype)
    assert agree(lambda tf: tf.grad(lambda x: (x * x).abs().sum())(x)).dtype == dtype


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3)])
def test_arguments_of_any_shape(shape):
    agree(lambda tf: tf.grad_and_value(lambda x: (x * x).sum())(torch.rand(shape)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(3, 4).t(),
        lambda: torch.rand(4)[::2],
        lambda: torch.rand(3, 1).expand(3, 5),
        lambda: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.nn.Parameter(torch.rand(3)),
    ],
    ids=["transposed", "strided", "expanded", "channels last", "parameter"],
)
def test_arguments_of_any_layout(make):
    agree(lambda tf: tf.grad_and_value(lambda x: (x.sin() * x).sum())(make()))


@structures
def test_aux_is_passed_through(pack):
    agree(lambda tf: tf.grad(lambda x: (x.sum(), pack(x * 2, Y)), has_aux=True)(X))
    agree(lambda tf: tf.grad_and_value(lambda x: (x.sum(), pack(x, Y)), has_aux=True)(X))


# torch.func rejects an aux that holds anything but tensors.
@pytest.mark.parametrize("aux", [1, "name", None, [1.0, {"a": None}]])
def test_aux_may_be_anything(aux):
    assert tl.grad(lambda x: (x.sum(), aux), has_aux=True)(X)[1] == aux
    assert tl.grad_and_value(lambda x: (x.sum(), aux), has_aux=True)(X)[1][1] == aux


def test_value_is_the_functions_value():
    gradient, value = agree(lambda tf: tf.grad_and_value(product)(X, Y))
    assert value == product(X, Y)
    torch.testing.assert_close(gradient, X.cos() * Y)


def test_value_that_is_the_argument_is_returned_unchanged():
    x = torch.tensor(2.0)
    gradient, value = tl.grad_and_value(lambda x: x)(x)
    assert value is x
    assert gradient.item() == 1.0


def test_no_grad_inside_holds():
    def f(x):
        with torch.no_grad():
            c = x**2
        return (x - c).sum()

    assert agree(lambda tf: tf.grad(f)(X)).tolist() == [1.0] * 3


def test_no_grad_around_the_whole_function_gives_zeros():
    assert agree(lambda tf: tf.grad(torch.no_grad()(torch.sum))(X)).tolist() == [0.0] * 3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_mode_outside_holds_outside_only(mode, requires_grad):
    def call(tf):
        x = X.clone().requires_grad_(requires_grad)
        with mode():
            return tf.grad_and_value(lambda x: (x**3).sum())(x)

    agree(call)


@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("inner", [torch.no_grad, torch.enable_grad])
def test_modes_between_two_grads(outer, inner):
    def call(tf):
        def f(x):
            with inner():
                return (x * tf.grad(lambda y: (y**3).sum())(x)).sum()

        with outer():
            return tf.grad_and_value(f)(X)

    agree(call)


def test_inference_tensors_are_arguments_like_others():
    with torch.inference_mode():
        x = torch.rand(3)
    agree(lambda tf: tf.grad(lambda x: (x**3).sum())(x))


def test_gradients_are_differentiable_by_plain_autograd_outside():
    def call(tf):
        x = X.clone().requires_grad_()
        w = Y.clone().requires_grad_()
        gradient, value = tf.grad_and_value(lambda x: (x**3 * w).sum())(x)
        return torch.autograd.grad(gradient.sum() + value, (x, w))

    agree(call)


def test_plain_autograd_works_inside():
    def f(x):
        y = x**3
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (g * x).sum()

    agree(lambda tf: tf.grad(f)(X))


def test_hooks_on_tensors_run_inside():
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sum()

    assert agree(lambda tf: tf.grad(f)(X)).tolist() == [20.0] * 3


def test_grad_of_grad_of_grad():
    third = agree(lambda tf: tf.grad(tf.grad(tf.grad(torch.sin)))(torch.tensor(0.3)))
    torch.testing.assert_close(third, -torch.cos(torch.tensor(0.3)))


def test_a_module_is_a_function():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Flatten(0))
    agree(lambda tf: tf.grad(lambda x: module(x).sum())(X))
    agree(lambda tf: tf.grad(torch.nn.MSELoss())(X, Y))


def test_parameters_are_differentiated_through_functional_call():
    module = torch.nn.Linear(3, 2)
    params = dict(module.named_parameters())

    def loss(params, x):
        return torch.func.functional_call(module, params, (x,)).square().sum()

    gradients = agree(lambda tf: tf.grad(loss)(params, X))
    assert list(gradients) == ["weight", "bias"]


def test_a_partial_is_a_function():
    agree(lambda tf: tf.grad(functools.partial(product, X))(Y))
    agree(lambda tf: tf.grad(functools.partial(product, y=Y))(X))


@pytest.mark.parametrize("transform", ["grad", "grad_and_value"])
def test_the_transformed_function_is_named_as_the_function(transform):
    def loss(x: Tensor) -> Tensor:
        """What is lost."""
        return x.sum()

    loss.note = "kept"
    transformed = getattr(tl, transform)(loss)
    assert transformed.__name__ == "loss"
    assert transformed.__qualname__ == loss.__qualname__
    assert transformed.__module__ == __name__
    assert transformed.__doc__ == "What is lost."
    assert transformed.__wrapped__ is loss
    assert transformed.note == "kept"


@pytest.mark.parametrize("transform", ["grad", "grad_and_value", "vmap", "jacrev", "jacfwd"])
def test_a_transformed_partial_is_documented_as_torch_funcs(transform):
    def call(tf):
        transformed = getattr(tf, transform)(functools.partial(product, y=2.0))
        return str(inspect.signature(transformed)), transformed.__doc__, vars(transformed).keys()

    agree(call)


def test_a_complex_output_that_does_not_depend_on_the_argument_has_a_gradient_of_zeros():
    agree(lambda tf: tf.grad(lambda x: torch.tensor(1j))(X))


def test_a_transformed_function_can_be_called_again_and_again():
    calls = []

    def f(x):
        calls.append(1)
        return (x * x).sum()

    g = tl.grad(f)
    assert torch.equal(g(X), g(X))
    assert len(calls) == 2


def test_a_callable_without_a_name_is_transformed():
    class Square:
        def __call__(self, x):
            return (x * x).sum()

    agree(lambda tf: tf.grad(Square())(X))


def test_methods_and_starred_arguments():
    class Model:
        def loss(self, *xs, scale=1.0, **more):
            return sum(x.sum() * scale for x in xs) * more.get("factor", 1.0)

    agree(lambda tf: tf.grad(Model().loss, argnums=(0, 2))(X, Y, X, scale=X.sum(), factor=3.0))
