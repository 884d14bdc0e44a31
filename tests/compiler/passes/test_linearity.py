"""linearity.py against the operators: f(x) + f(y) is f(x + y) in each argument that it names."""

import pytest
import torch

from torchlayers.compiler.passes.products.linearity import has_slope, is_scaling, linear_places

A = torch.ops.aten
X, Y, Z = (torch.randn(2, 2, dtype=torch.float64) for _ in range(3))
CALLS = {
    A.mm.default: (X, Z),
    A.mul.Tensor: (X, Z),
    A.div.Tensor: (X, Z),
    A.neg.default: (X,),
    A.mul.Scalar: (X, 3.0),
    A.sum.dim_IntList: (X, [0]),
    A.t.default: (X,),
    A.expand.default: (X, [3, 2, 2]),
    A.cumsum.default: (X, 0),
    A.tanh_backward.default: (X, Z),
    A.elu_backward.default: (X, 1.0, 1.0, 1.0, False, Z),
    A.mish_backward.default: (X, Z),
    A.flip.default: (X, [0]),
}


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_operators_are_linear_in_their_places(op):
    args = CALLS[op]
    places = linear_places(op)
    assert places
    for i in places:
        both, left, right = (
            op(*args[:i], x, *args[i + 1 :]) for x in (args[i] - 2 * Y, args[i], Y)
        )
        torch.testing.assert_close(both, left - 2 * right)


NOT_LINEAR = [
    *(A.add.Tensor, A.add.Scalar, A.sin.default, A.relu.default, A.clamp.default, A.exp.default),
    *(A.index_add.default, A.masked_fill.Scalar, A.cat.default, A.split.Tensor),
]


@pytest.mark.parametrize("op", NOT_LINEAR, ids=str)
def test_others_are_not(op):
    assert linear_places(op) == ()


def test_slopes_and_scalings():
    assert has_slope(A.gelu_backward.default)
    assert not has_slope(A.avg_pool2d_backward.default)
    assert is_scaling(A.div.Scalar)
    assert not is_scaling(A.sum.default)
    assert not is_scaling(torch.ops._c10d_functional.wait_tensor.default)
