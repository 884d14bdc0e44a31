"""torchlayers.testing.check_grads: passes on right derivatives, and fails on planted faults."""

import re

import pytest
import torch

import torchlayers as tl
from torchlayers.testing import check_grads

X = torch.tensor([0.3, -1.2, 2.0])
Y = torch.tensor([1.5, 0.4, -0.7])


def power(first=1.0, second=1.0, tangent=1.0):
    """x**3 as an autograd.Function, with derivatives that are wrong by these factors."""

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 3 * x**2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return second * 6 * ctx.saved_tensors[0] * g

        @staticmethod
        def jvp(ctx, t):
            return second * 6 * ctx.saved_tensors[0] * t

    class Power(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        setup_context = Slope.setup_context

        @staticmethod
        def backward(ctx, g):
            return first * g * Slope.apply(ctx.saved_tensors[0])

        @staticmethod
        def jvp(ctx, t):
            return tangent * t * Slope.apply(ctx.saved_tensors[0])

    return Power.apply


def message_of(f, args, order, **options):
    with pytest.raises(AssertionError) as raised:
        check_grads(f, args, order, **options)
    assert tl.current_stack() == ()
    return str(raised.value)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lambda x: x.sin().exp(), (X,)),
        (lambda x, y: x.outer(y).logsumexp(0), (X, Y)),
        (lambda tree: [tree["a"] * tree["b"][0], {"c": tree["a"].sum()}], ({"a": X, "b": [Y]},)),
        (lambda x: x.float().exp(), (X,)),  # computes in single precision
        (lambda z: (z * z.conj()).real.sum() * z, (torch.complex(X, Y),)),
        (torch.fft.rfft, (X,)),
        (lambda x, n, name: x**n, (X, 3, "unused")),
        (lambda x, i: (x[i], i + 1, "label"), (X, torch.tensor([0, 2]))),
        (lambda x: x.new_zeros(2), (X,)),
        (lambda x: x.clone().mul_(x), (X,)),
        (torch.sin, (torch.empty(0, 2),)),
        (lambda x: 1e-8 * x.sin(), (X,)),
        (power(), (X,)),
    ],
)
def test_right_derivatives_pass(f, args):
    check_grads(f, args, order=2)


def test_higher_orders_pass():
    check_grads(lambda x: x.sin() * x, (X,), order=4)


def test_captured_tensors_are_constants():
    weights = torch.ones(3, 2, dtype=torch.float64)
    check_grads(lambda x: (x @ weights).tanh(), (X,), order=2)


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (torch.relu, [0.0, 1.0, -1.0]),
        (torch.abs, [0.0, -0.0, 3.0]),
        (torch.amax, [1.0, 1.0, 0.0]),  # which shares the derivative among ties
        (torch.relu, [1e-4, 0.0, 1.0]),  # a kink at less than a step
        (torch.sign, [0.0, 0.0, 1.0]),  # a jump
        (lambda x: x + torch.tensor([0.0, -torch.inf, torch.nan]), [1.0, 1.0, 1.0]),
    ],
)
def test_points_without_a_derivative_pass(f, x):
    check_grads(f, (torch.tensor(x),), order=2)


def test_derivative_outside_of_both_sides_of_a_kink_fails():
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.relu()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return torch.where(ctx.saved_tensors[0] == 0, -g, g)

    found = message_of(Relu.apply, (torch.zeros(1),), 1, modes="rev")
    assert re.search(r"expected between .* and .*, got", found)


def test_gradient_wrong_by_a_factor_fails():
    found = message_of(power(first=1.5), (X,), 1, modes="rev")
    assert "Power.apply, order 1, mode rev: the cotangent of argument 0, times a direction" in found
    assert "(1.5 times as much)" in found


def test_tangent_wrong_by_a_factor_fails_at_its_element():
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    found = message_of(power(tangent=weights), (X,), 1)
    assert (
        "order 1, mode fwd: the tangent of result at (1), along a direction of argument 0" in found
    )
    assert "(2 times as much)" in found


def test_wrong_tangent_of_a_number_fails():
    found = message_of(power(tangent=2.0), (torch.tensor(1.0),), 1)
    assert "the tangent of result, along a direction of argument 0, is wrong" in found


def test_wrong_second_derivative_passes_order_one_and_fails_order_two():
    f = power(second=2.0)
    check_grads(f, (X,), order=1)
    assert "order 2, mode fwd over fwd: the tangent of the tangent of result" in message_of(
        f, (X,), 2
    )
    found = message_of(f, (X,), 2, modes=["rev"])
    assert "order 2, mode rev over rev: the cotangent of argument 0" in found


def test_modes_are_checked_one_by_one():
    check_grads(power(first=1.5), (X,), 1, modes="fwd")
    check_grads(power(tangent=1.5), (X,), 1, modes="rev")


def test_the_leaf_with_the_wrong_gradient_is_named():
    def f(tree, y):
        return {"z": [tree["a"] * y, power(first=-1.0)(tree["b"])]}

    found = message_of(f, ({"a": X, "b": Y}, X), 1, modes=("rev",))
    assert "the cotangent of argument 0, ['b'], times a direction, is wrong" in found
    assert "(-1 times as much)" in found


def test_the_leaf_of_the_result_is_named():
    found = message_of(lambda x: {"y": x, "z": [power(tangent=2.0)(x)]}, (X,), 1)
    assert "the tangent of result['z'][0] at (" in found


def test_jvp_and_vjp_that_are_not_transposes_fail():
    # Both within the tolerance of the differences.
    found = message_of(power(first=1.1, tangent=0.9), (X,), 1, rtol=0.5, atol=1e-4)
    assert (
        "order 1, mode fwd and rev: jvp and vjp with respect to argument 0 are not transposes"
        in found
    )


def test_wrong_conjugate_fails():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(z):
            return z * z

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g  # should be its conjugate

    assert "the cotangent of argument 0" in message_of(
        Square.apply, (torch.complex(X, Y),), 1, modes="rev"
    )


def test_value_that_differs_under_a_transform_fails():
    def f(x):
        return x * 2 if tl.current_stack() else x

    assert "mode fwd: the value of result is another one" in message_of(f, (X,), 1)


def test_nan_derivative_fails():
    assert "got nan" in message_of(power(tangent=torch.nan), (X,), 1)
    assert "got nan" in message_of(power(first=torch.nan), (X,), 1, modes="rev")


def test_random_function_fails():
    assert "draws random numbers" in message_of(lambda x: x * torch.rand(3), (X,), 1)


def test_only_chosen_arguments_are_differentiated():
    def f(x, y):
        return power(first=2.0)(x) + y

    check_grads(f, (X, Y), 1, argnums=1)
    check_grads(f, (X, Y), 1, argnums=(-1,))
    assert "argument 0" in message_of(f, (X, Y), 1, argnums=(0, 1))


@pytest.mark.parametrize("frequency", [1e2, 1e4, 1e6])
def test_fast_oscillation_is_no_excuse(frequency):
    """Even where it is too fast for the step, which eps is for."""
    f = power(first=1.5, tangent=1.5)
    message_of(lambda x: f((frequency * x).sin() + 2), (X,), 1)
    eps = 0.1 / frequency
    check_grads(lambda x: (frequency * x).sin(), (X,), 1, eps=eps, atol=1e-4, rtol=1e-4)


def test_step_and_tolerances_are_used():
    def f(x):
        return (100 * x).sin()

    check_grads(f, (X,), 1, eps=1e-5)
    assert "mode fwd" in message_of(f, (X,), 1, eps=1e-2)
    check_grads(power(first=1.01, tangent=1.01), (X,), 1, rtol=0.05)


def test_results_are_the_same_at_each_call_and_random_state_is_untouched():
    before = torch.get_rng_state()
    f = power(first=1.5)
    assert message_of(f, (X,), 1) == message_of(f, (X,), 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("error", "args", "order", "options", "message"),
    [
        (tl.errors.TransformError, (X,), 0, {}, "order must be a positive int, got 0"),
        (tl.errors.TransformError, (X,), 1, {"modes": ["reverse"]}, "'fwd' and 'rev', got"),
        (tl.errors.TransformError, (X,), 1, {"modes": ()}, "'fwd' and 'rev', got"),
        (tl.errors.TransformError, (X,), 1, {"eps": -1.0}, "eps must be positive"),
        (tl.errors.TransformError, X, 1, {}, "args must be the tuple"),
        (tl.errors.ArgnumsError, (X,), 1, {"argnums": 1}, "argnums=1"),
        (tl.errors.NotTensorError, (torch.arange(2),), 1, {}, "args have no tensor of"),
    ],
)
def test_invalid_arguments_are_refused(error, args, order, options, message):
    with pytest.raises(error, match=re.escape(message)):
        check_grads(torch.sin, args, order, **options)


def test_function_without_differentiable_results_is_refused():
    with pytest.raises(tl.errors.OutputError, match="returns no tensor of a floating-point"):
        check_grads(lambda x: x > 0, (X,), 1)


def test_edge_of_the_domain_is_refused():
    with pytest.raises(
        tl.errors.OutputError, match="sqrt: result is infinite or nan at a distance"
    ):
        check_grads(torch.sqrt, (torch.zeros(2),), 1)


def test_captured_single_precision_is_explained():
    with pytest.raises(tl.errors.DtypeError, match=r"module\.double"):
        check_grads(torch.nn.Linear(3, 1), (X,), 1)
    check_grads(torch.nn.Linear(3, 1).double(), (X,), 2)
