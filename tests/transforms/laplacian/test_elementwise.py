"""Elementwise operators by the terms of csrc/rules, compared with Hessians and rules by hand."""

from unittest import mock

import pytest
import torch

import torchlayers as tl
from tests.transforms.laplacian.reference import traces_over
from torchlayers.transforms.laplacian import elementwise
from torchlayers.transforms.laplacian import rules as rules
from torchlayers.transforms.laplacian.layer import ForwardLaplacian
from torchlayers.transforms.layers.rule_table import facts
from torchlayers.transforms.layers.slopes import backward_of_argument

A = torch.ops.aten
# Whose derivatives are polynomials of the result.
BY_RESULT = [A.exp, A.exp2, A.expm1, A.reciprocal, A.sigmoid, A.tan, A.tanh]
BY_HAND = [*BY_RESULT, *elementwise.CLOSED_FORMS]


class Derived(ForwardLaplacian):
    """Without the rules by hand."""

    name = "derived laplacian"


Derived.rule(*BY_HAND)(elementwise.elementwise)


def parts_of(layer_class, op, x, *args):
    """The rows and the Laplacian of an operator's result."""
    rows = torch.stack([x.sin(), x.cos(), x.exp()])
    with layer_class() as layer:
        y = layer.apply(op, layer.result(x, rows, x.square()), *args)
        return y.value, y.parts.rows, y.parts.laplacian


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("op", BY_HAND, ids=str)
def test_rules_by_hand_are_those_of_the_terms(op, is_complex):
    dtype = torch.complex128 if is_complex else torch.float64
    x = torch.randn(3, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    args = (2,) if op is A.pow.Tensor_Scalar else ()
    by_hand = parts_of(ForwardLaplacian, op, x, *args)
    with mock.patch.object(elementwise.Slopes, "closed_form", return_value=None):
        derived = parts_of(Derived, op, x, *args)
    torch.testing.assert_close(by_hand, derived)


BY_BACKWARD = [A.gelu, A.hardswish, A.logit, A.mish, A.silu, A.softplus]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in the first by oneDNN
@pytest.mark.parametrize("op", BY_BACKWARD, ids=str)
def test_the_derivative_of_a_backward_operator_is_the_second_one(op, dtype):
    assert backward_of_argument(op.default) is not None
    x = torch.rand(3, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    stated = parts_of(ForwardLaplacian, op, x)
    with mock.patch.object(elementwise, "backward_of_argument", return_value=None):
        derived = parts_of(ForwardLaplacian, op, x)
    torch.testing.assert_close(stated, derived)


@pytest.mark.parametrize("op", BY_HAND, ids=str)
def test_rules_by_hand_are_of_operators_with_terms(op):
    overload = op if isinstance(op, torch._ops.OpOverload) else op.default
    assert facts(overload)["elementwise_in"] == [0]


def values(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(sizes, generator=generator, dtype=torch.float64) + 0.5


X, Y, Z = values(2, 3), values(3, seed=1), values(2, 1, seed=2)
SEVERAL = {
    "of one tensor, broadcast": (lambda x: A.atan2(x.sin(), Y[None, None]), [Z]),
    "of two tensors, broadcast": (lambda x, y: A.hypot(x.sin(), y.exp()), [X, Y]),
    "of a tensor twice": (lambda x: A.atan2(x, x * 2) * A.hypot(x, x), [Y]),
    "of three tensors": (lambda x, y, z: A.addcdiv(x, y.sin(), z.exp(), value=0.5), [X, Y, Z]),
    "of a number and a tensor": (lambda x: A.pow.Scalar(2, x.sin()), [X]),
    "with several results": (lambda x: A.frexp(x.exp())[0] * A.log_sigmoid_forward(x)[0], [X]),
    "of complex numbers": (lambda x: torch.polar(x.exp(), x).sin().abs(), [X]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_elementwise_operators_of_several_tensors(name):
    f, inputs = SEVERAL[name]

    def number(*inputs):
        return f(*inputs).sin().sum()

    places = tuple(range(len(inputs)))
    found = tl.laplacian(number, places)(*inputs)
    torch.testing.assert_close(found, traces_over(number, inputs))


def test_a_constant_by_its_derivative_has_no_parts():
    with ForwardLaplacian() as layer:
        x = layer.result(X, torch.stack([X, X]), None)
        y = layer.apply(lambda x: A.div.Tensor_mode(x, 0.3, rounding_mode="floor") + 0, x)
        assert y.parts is None or not y.parts.rows.any()
