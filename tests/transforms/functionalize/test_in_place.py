"""In-place operators: results, errors, and derivatives, also by autograd or torch.func outside."""

import pytest
import torch
import torch.func
from torch.autograd import forward_ad
from torch.nn import functional

import torchlayers as tl
from tests.transforms.functionalize import X

W = torch.tensor([[0.3, 0.7, 1.1], [0.2, 0.4, 0.9]], dtype=torch.float64)
PLACES = torch.tensor([0, 2])

WRITES = {
    **{
        name: lambda y, w, name=name: getattr(y, name)()
        for name in [
            "zero_",
            "relu_",
            "neg_",
            "exp_",
            "sigmoid_",
            "sin_",
            "abs_",
            "sqrt_",
            "detach_",
            "digamma_",
            "frac_",
            "round_",
            "square_",
            "normal_",
            "uniform_",
            "exponential_",
            "cauchy_",
            "log_normal_",
            "bernoulli_",
            "tril_",
        ]
    },
    "geometric_": lambda y, w: y.geometric_(0.5),
    "random_": lambda y, w: y.random_(5),
    "fill_ by a number": lambda y, w: y.fill_(2.0),
    "fill_ by a tensor": lambda y, w: y.fill_(w[0, 0]),
    "fill_diagonal_": lambda y, w: y.fill_diagonal_(2.0),
    "copy_": lambda y, w: y.copy_(w[:1]),
    "copy_ to another dtype": lambda y, w: y.copy_(w[:1].float()),
    "copy_ to a slice": lambda y, w: y[:, ::2].copy_(w[:, :2]),
    "copy_ to a transpose": lambda y, w: y.t().copy_(w.t()),
    "setitem": lambda y, w: y.__setitem__(0, w[1]),
    "setitem in strided memory": lambda y, w: y.as_strided((2,), (4,), 0).mul_(w[0, :2]),
    "add_": lambda y, w: y.add_(w, alpha=2),
    "lerp_": lambda y, w: y.lerp_(w, w),
    "addcmul_": lambda y, w: y.addcmul_(w, w),
    "addmm_": lambda y, w: y.addmm_(w, w.t() @ w),
    "clamp_": lambda y, w: y.clamp_(min=w[:1]),
    "renorm_": lambda y, w: y.renorm_(2, 0, 1.0),
    "masked_fill_": lambda y, w: y.masked_fill_(w > 0.5, w[0, 0]),
    "masked_scatter_": lambda y, w: y.masked_scatter_(w > 0.5, w * 2),
    "put_": lambda y, w: y.put_(PLACES, w[0, :2]),
    "index_fill_": lambda y, w: y.index_fill_(1, PLACES, w[0, 0]),
    "index_copy_": lambda y, w: y.index_copy_(1, PLACES, w[:, :2]),
    "scatter_add_": lambda y, w: y.scatter_add_(1, PLACES.expand(2, 2), w[:, :2]),
    "_foreach_mul_": lambda y, w: torch._foreach_mul_([y], [w]),
    "_foreach_zero_": lambda y, w: torch._foreach_zero_([y]),
    "dropout": lambda y, w: functional.dropout(y, 0.5, training=True, inplace=True),
    "celu": lambda y, w: functional.celu(y, inplace=True),
    "hardtanh": lambda y, w: functional.hardtanh(y, inplace=True),
}


def without_views(f):
    return tl.functionalize(f, remove="mutations_and_views")


def on_samples(f):
    def twice(x):
        samples = torch.ones(2, dtype=x.dtype)
        return tl.vmap(lambda sample: f(x * sample), randomness="same")(samples).sum(0) / 2

    return twice


def on_captured(f):
    def twice(x):
        samples = torch.ones(2, dtype=x.dtype)
        return tl.vmap(lambda sample: f(x) * sample, randomness="same")(samples).sum(0) / 2

    return twice


FUNCTIONALIZED = {
    "functionalize": tl.functionalize,
    "without views": without_views,
    "vmap of it": lambda f: on_samples(tl.functionalize(f)),
    "vmap of it, captured": lambda f: on_captured(tl.functionalize(f)),
    "of vmap": lambda f: tl.functionalize(on_samples(f)),
    "of vmap, captured": lambda f: tl.functionalize(on_captured(f)),
}


def plain_gradient(f):
    def gradient(x):
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)[0]

    return gradient


def plain_tangent(f):
    def tangent(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x * x)))[1]

    return tangent


def gradient(f):
    return tl.grad(lambda x: f(x).sum())


def tangent(f):
    return lambda x: tl.jvp(f, (x,), (x * x,))[1]


def torch_gradient(f):
    return torch.func.grad(lambda x: f(x).sum())


def torch_tangent(f):
    return lambda x: torch.func.jvp(f, (x,), (x * x,))[1]


# Around functionalize and inside it.
DERIVATIVES = {
    "plain gradient": (plain_gradient, None),
    "plain tangent": (plain_tangent, None),
    "torch.func's gradient": (torch_gradient, None),
    "torch.func's tangent": (torch_tangent, None),
    "gradient": (gradient, None),
    "tangent": (tangent, None),
    "inner gradient": (None, gradient),
    "inner tangent": (None, tangent),
    "plain gradient of gradient": (plain_gradient, gradient),
    "plain gradient of tangent": (plain_gradient, tangent),
    "gradient of gradient": (gradient, gradient),
    "gradient of tangent": (gradient, tangent),
}


def nested(outer, functionalized, inner, f):
    for transform in (inner, functionalized, outer):
        f = f if transform is None else transform(f)
    torch.manual_seed(1)
    return f(W.clone()).detach()


@pytest.mark.sweep(one_in=8)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("functionalized", FUNCTIONALIZED.values(), ids=FUNCTIONALIZED)
@pytest.mark.parametrize(("outer", "inner"), DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_derivatives_are_as_without_it(write, outer, inner, functionalized):
    def f(w):
        y = w.clone() * 1.5
        write(y, w)
        return (y * y * y).sum() * w * w

    expected = nested(outer, None, inner, f)
    torch.testing.assert_close(nested(outer, functionalized, inner, f), expected)


def to_strided_memory(x):
    y = x.t().contiguous()[1:]
    y.as_strided((2,), (3,), 1).copy_(x[0, :2])  # in part before y
    return y.sin() * y


def to_expanded(x):
    y = (x * 2).expand(2, *x.shape)[0]
    y.copy_(x.cos())
    return y * y


@pytest.mark.parametrize("f", [to_strided_memory, to_expanded])
@pytest.mark.parametrize("derivative", [plain_gradient, plain_tangent])
def test_plain_derivatives_of_writes_to_views(f, derivative):
    torch.testing.assert_close(derivative(tl.functionalize(f))(W), derivative(f)(W))


def test_plain_second_derivatives():
    def f(w):
        y = w * 1.5
        y[0] = w[1]
        y.as_strided((2,), (4,), 0).mul_(w[0, :2])
        return y**3

    found = plain_gradient(plain_gradient(tl.functionalize(f)))(W)
    torch.testing.assert_close(found, plain_gradient(plain_gradient(f))(W))


INVALID = {
    "shape": lambda x: x[0].clone().add_(x),
    "shape of a mask": lambda x: x[0].clone().masked_fill_(x > 0, 1.0),
    "int to float": lambda x: torch.arange(3).add_(x[0]),
    "quotient of ints": lambda x: torch.arange(3).div_(2),
    "int to bool": lambda x: (x > 0).add_(1),
    "complex to real": lambda x: x.clone().mul_(1j),
}


@pytest.mark.parametrize("f", INVALID.values(), ids=INVALID)
def test_errors_are_those_of_the_operator(f):
    with pytest.raises(RuntimeError) as expected:
        f(X)
    with pytest.raises(RuntimeError) as found:
        tl.functionalize(f)(X)
    assert str(found.value) == str(expected.value)
