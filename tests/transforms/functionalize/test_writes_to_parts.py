"""Derivatives of writes to parts of tensors, and of views without memory."""

import functools

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.transforms.functionalize import X, others, removes

SQUARE = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3], [0.7, 0.2, -0.4]], dtype=torch.float64)
ALONG = torch.tensor([[0.3, -0.7, 1.1], [0.2, 0.9, -0.5], [1.3, 0.4, 0.6]], dtype=torch.float64)


def to_a_slice(x):
    y = x * 2
    y[1:].add_(x[1:])
    return y * y


def to_a_slice_without_a_tangent(x):
    y = torch.zeros_like(x)
    y[1:] += x[:2].cos()
    return y


def to_a_transpose(x):
    y = x.t() * 2
    y.t()[1:].mul_(x[:2])
    return y * y


def to_a_diagonal(x):
    y = x.sin()
    y.diagonal()[1:].mul_(x[0, :2])
    return y * y


def to_a_view_of_a_view(x):
    y = x * 2
    y.view(-1)[2:][1:5].mul_(x.reshape(-1)[:4])
    return y * y


def to_strided_memory(x):
    y = x * 2
    y.as_strided((2, 2), (3, 1), 4).mul_(x[:2, :2])
    return y * y


def to_strided_memory_by_a_view(x):
    y = x * 2
    y[1:].as_strided((2, 2), (3, 1), 1).mul_(x[:2, :2])
    return y * y


def to_views_that_overlap(x):
    y = x.sin()
    rows, columns = y[1:], y[:, 1:]
    rows.mul_(x[1:])
    columns.mul_(x[:, 1:])
    rows.exp_()
    return y * columns.sum() + rows.mean()


def to_a_copy_that_reshape_makes(x):
    y = (x * 2).t()
    flat = y.reshape(9)
    flat[3:].mul_(x.reshape(9)[:6])
    return y * y + flat.view(3, 3)


def to_real_and_imaginary_parts(x):
    y = torch.complex(x.sin(), x.cos())
    y.imag.mul_(x)
    y.real[1:].add_(x[:2])
    return (y * y).real + y.imag


def to_a_complex_view(x):
    y = torch.stack([x.sin(), x], -1)
    torch.view_as_complex(y)[1:].mul_(2j)
    return (y * y).sum(-1)


def where_a_mask_says(x):
    y = x * 2
    y[1:][x[1:] > 0.4] = x[0, 0]
    return y * x


def seen_in_place(x):
    y = x * 2
    y.t_()
    y[1:].mul_(x[:2])
    return y.transpose_(0, 1) * x


def to_what_a_constant_gives(x):
    y = SQUARE * 2
    y[1:] = x[:2].cos()
    return y * y


PARTS = [
    to_a_slice,
    to_a_slice_without_a_tangent,
    to_a_transpose,
    to_a_diagonal,
    to_a_view_of_a_view,
    to_strided_memory,
    to_strided_memory_by_a_view,
    to_views_that_overlap,
    to_a_copy_that_reshape_makes,
    to_real_and_imaginary_parts,
    to_a_complex_view,
    where_a_mask_says,
    seen_in_place,
    to_what_a_constant_gives,
]
parts = pytest.mark.parametrize("f", PARTS)


def differences(f, x, along, step=1e-6):
    return (f(x + step * along) - f(x - step * along)) / (2 * step)


@parts
@removes
def test_derivatives_of_writes_to_parts_are_those_of_differences(f, remove):
    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = differences(f, SQUARE, ALONG)

    def pushed(x):
        return tl.jvp(f, (x,), (ALONG,))[1]

    def pulled(x):
        return tl.vjp(f, x)[1](ALONG)[0]

    pushes = [functionalize(pushed), lambda x: tl.jvp(functionalize(f), (x,), (ALONG,))[1]]
    for push in pushes:
        torch.testing.assert_close(push(SQUARE), expected, atol=1e-7, rtol=1e-6)
    # Adjoints of the same map.
    of_direction = (expected * ALONG).sum()
    pulls = [functionalize(pulled), lambda x: tl.vjp(functionalize(f), x)[1](ALONG)[0]]
    for pull in pulls:
        torch.testing.assert_close((pull(SQUARE) * ALONG).sum(), of_direction, atol=1e-7, rtol=1e-6)


SECOND = {
    "hessian": lambda f, within: within(tl.hessian(lambda x: f(x).sin().sum())),
    "jacrev of jacfwd": lambda f, within: within(tl.jacrev(tl.jacfwd(f))),
    "vmap of grad": lambda f, within: within(
        lambda x: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(torch.stack([x, x.flip(0)]))
    ),
    "linearize": lambda f, within: within(lambda x: tl.linearize(f, x)[1](ALONG)),
}


@parts
@removes
@pytest.mark.parametrize("nest", SECOND.values(), ids=SECOND)
def test_nests_of_writes_to_parts_are_as_without_it(f, remove, nest):
    if f is to_strided_memory_by_a_view and nest is not SECOND["linearize"]:
        pytest.skip("torch's as_strided of a batch reads no memory before the tensor")
    expected = nest(f, lambda g: g)(SQUARE)
    result = nest(f, functools.partial(tl.functionalize, remove=remove))(SQUARE)
    torch.testing.assert_close(result, expected)


@others
@removes
@pytest.mark.parametrize("f", [lambda x: x * x.detach(), lambda x: x * x.conj().real])
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_views_without_memory_have_the_derivatives_of_views(f, remove, other):
    x = X.double()
    expected = other(tl, f)(x)
    torch.testing.assert_close(other(tl, tl.functionalize(f, remove=remove))(x), expected)
    torch.testing.assert_close(tl.functionalize(other(tl, f), remove=remove)(x), expected)


OVERLAPPING = {
    "row of as_strided": lambda y: y.as_strided((2, 2), (1, 1), 1)[0],
    "second row of as_strided": lambda y: y.as_strided((2, 3), (2, 1), 0)[1],
    "window of unfold": lambda y: y.view(-1).unfold(0, 3, 1)[1],
    "column of windows": lambda y: y.unfold(1, 2, 1)[:, 0],
    "window of a transpose": lambda y: y.t().unfold(0, 2, 1)[0],
    "row of expand": lambda y: y.expand(2, *y.shape)[0],
}
DERIVED = {
    "value": lambda f, x: f(x),
    "plain gradient": lambda f, x: torch.autograd.grad(f(x.requires_grad_()).sum(), x)[0],
    "grad": lambda f, x: tl.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: tl.jvp(f, (x,), (x.cos(),))[1],
    "vmap": lambda f, x: tl.vmap(f)(torch.stack([x, x + 1])),
}


@removes
@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("view", OVERLAPPING.values(), ids=OVERLAPPING)
def test_writes_to_a_view_of_a_view_that_overlaps_itself(view, derive, remove):
    """torch adds up the elements of such a view, or takes one that was not written."""

    def f(x):
        y = x * 1.5
        view(y).mul_(3)
        return y.sin() * y

    found = derive(tl.functionalize(f, remove=remove), X.double())
    torch.testing.assert_close(found, derive(f, X.double()))


COMPLEX = {
    "real part": lambda y, w: y.real.mul_(2),
    "imaginary part": lambda y, w: y.imag.copy_(w.real[:1]),
    "real numbers": lambda y, w: torch.view_as_real(y)[..., 0].copy_(w.abs()),
    "conjugate": lambda y, w: y.conj()[0].copy_(w[1]),
    "part in memory": lambda y, w: y.as_strided((2, 2), (1, 3), 1).copy_(w[:, :2]),
    "slice": lambda y, w: y.view(-1)[2:4].mul_(w[0, 0]),
}


@removes
@pytest.mark.parametrize("write", COMPLEX.values(), ids=COMPLEX)
def test_plain_gradients_of_complex_numbers(write, remove):
    """torch differentiates neither copied views nor writes to parts of them."""

    def gradient(transform):
        def f(w):
            y = w * 1.5
            write(y, w)
            return y * y

        w = (X * (1 + 0.5j)).requires_grad_()
        return torch.autograd.grad(transform(f)(w).abs().square().sum(), w)[0]

    expected = gradient(lambda f: f)
    found = gradient(lambda f: tl.functionalize(f, remove=remove))
    torch.testing.assert_close(found, expected)


CAPTURED = {
    "slice": lambda y, w: y[1:].mul_(w[0, 0]),
    "row": lambda y, w: y[-1].copy_(w[0].conj() * 2),
    "column from the end": lambda y, w: y.select(-1, 1).copy_(w[:, 0]),
    "diagonal": lambda y, w: y.diagonal(0, -1, 0).copy_(w[0, :2]),
    "conjugate": lambda y, w: y.conj()[0].copy_(w[1]),
    "real values": lambda y, w: y[0].copy_(w[1].real),
}


@pytest.mark.parametrize("write", CAPTURED.values(), ids=CAPTURED)
def test_captured_writes_to_parts_of_complex_parameters(write):
    """The scatters that functionalize makes have no derivative in torch for complex numbers."""
    w = (X * (1 + 0.5j)).requires_grad_()

    def f(x):
        y = x * w
        write(y, w)
        return (y * y).abs().sum()

    for transform in (tl.functionalize, tl.laplacian, lambda f: tl.grad(tl.functionalize(f))):
        (found,) = tl.make_graph(transform(f))(X)(X, w)
        torch.testing.assert_close(found, transform(f)(X))
