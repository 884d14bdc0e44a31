"""Rules of custom_jvp and custom_vjp that call the function whose rules they are."""

import pytest
import torch

import torchlayers as tl

X = torch.tensor(0.3, dtype=torch.float64)
A, B = torch.tensor(2.0, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)


@tl.custom_vjp
def sine(x):
    return torch.sin(x)


sine.defvjp(lambda x: (sine(x), torch.cos(x)), lambda cos, g: (cos * g,))


@tl.custom_vjp
def sine_by_result(x):
    return torch.sin(x)


def _fwd_with_result(x):
    y = sine_by_result(x)
    return y, (x, y)


sine_by_result.defvjp(_fwd_with_result, lambda res, g: (g * torch.cos(res[0]) + 0 * res[1],))


@tl.custom_jvp
def product(a, b):
    return a * b.sin()


@product.defjvp
def _product_rule(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return product(a, b), product(da, b) + a * b.cos() * db


def _jvp_of_grad(f):
    return lambda x: tl.jvp(tl.grad(f), (x,), (torch.ones_like(x),))[1]


NESTS = {
    "hessian": tl.hessian,
    "vmap(hessian)": lambda f: lambda x: tl.vmap(tl.hessian(f))(x[None])[0],
    "grad(grad)": lambda f: tl.grad(tl.grad(f)),
    "grad(grad(grad))": lambda f: tl.grad(tl.grad(tl.grad(f))),
    "jacfwd(grad(grad))": lambda f: tl.jacfwd(tl.grad(tl.grad(f))),
    "grad(jvp(grad))": lambda f: tl.grad(_jvp_of_grad(f)),
    "jvp(jvp(grad))": lambda f: tl.jacfwd(_jvp_of_grad(f)),
    "hessian(hessian)": lambda f: tl.hessian(tl.hessian(f)),
    "compiled": lambda f: tl.compile(tl.hessian(f), backend="replay"),
}


@pytest.mark.parametrize("f", [sine, sine_by_result], ids=["sine", "sine_by_result"])
@pytest.mark.parametrize("nest", NESTS)
def test_a_fwd_that_calls_its_function(nest, f):
    torch.testing.assert_close(NESTS[nest](f)(X), NESTS[nest](torch.sin)(X))


def test_a_fwd_that_differentiates_another_custom_function():
    @tl.custom_vjp
    def f(x):
        return sine(x).exp()

    def fwd(x):
        slope, y = tl.grad_and_value(lambda x: sine(x).exp())(x)
        return y, slope

    f.defvjp(fwd, lambda slope, g: (slope * g,))
    torch.testing.assert_close(tl.grad(f)(X), tl.grad(lambda x: x.sin().exp())(X))
    torch.testing.assert_close(tl.hessian(f)(X), tl.hessian(lambda x: x.sin().exp())(X))


OF_TWO = {
    "grad": lambda f: tl.grad(f, (0, 1)),
    "grad(grad)": lambda f: tl.grad(tl.grad(f, 1), (0, 1)),
    "grad(grad(grad))": lambda f: tl.grad(tl.grad(tl.grad(f, 1), 0), 1),
    "hessian": lambda f: tl.hessian(f, (0, 1)),
    "jacrev(jacrev)": lambda f: tl.jacrev(tl.jacrev(f, 1), (0, 1)),
    "jacrev(jacfwd)": lambda f: tl.jacrev(tl.jacfwd(f, 1), (0, 1)),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f, (0, 1)), (0, None)),
    "compiled": lambda f: tl.compile(tl.grad(tl.grad(f, 1), (0, 1)), backend="replay"),
}


@pytest.mark.parametrize("nest", OF_TWO)
def test_a_jvp_rule_that_calls_its_function_on_a_tangent(nest):
    a = A[None] if nest == "vmap(grad)" else A
    right = OF_TWO[nest](lambda a, b: a * b.sin())(a, B)
    torch.testing.assert_close(OF_TWO[nest](product)(a, B), right)


def test_the_same_under_plain_autograd():
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    first = torch.autograd.grad(product(a, b), (a, b), create_graph=True)
    torch.testing.assert_close(first, (B.sin(), A * B.cos()))
    torch.testing.assert_close(torch.autograd.grad(first[1], (a, b)), (B.cos(), -A * B.sin()))


@tl.custom_jvp
def exponential(x):
    return x.detach().exp()  # not differentiable as it is written


exponential.defjvps(lambda t, y, x: t * y)


@pytest.mark.parametrize("nest", NESTS)
def test_a_call_on_primals_is_differentiated_by_the_rule(nest):
    transform = NESTS[nest]
    torch.testing.assert_close(transform(exponential)(X), transform(torch.exp)(X))


def test_plain_second_derivative_of_a_call_on_primals_is_by_the_rule():
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(exponential(x), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first, x)[0], X.exp())
