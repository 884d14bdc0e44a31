"""Writes inside layers written in Python whose derivative is taken around the layer."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

X = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)
ROWS = torch.stack([X, X.flip(0) + 1])
W = torch.tensor([0.3, 0.4, -0.5], dtype=torch.float64)
ONES = torch.ones_like(X)


class Through(tl.Layer):
    """Computes what the function does."""

    def inputs(self, x):
        return (self.tensor(x),), {}


@Through.rule("any")
def through(layer, op, *args, **kwargs):
    return tl.tree.map_tensors(layer.tensor, layer.send_down(op, args, kwargs))


def norms(x):
    """Clamped under no_grad by torch."""
    return F.cosine_similarity(x, W, 0)


def clamped(x):
    y = x * x
    with torch.no_grad():
        y.clamp_(max=0.3)
    return (y * x).sum()


def part(x):
    y = x * x
    with torch.no_grad():
        y[:2].mul_(3.0)
    return (y * x).sum()


def out(x):
    y = x * x
    with torch.no_grad():
        torch.mul(x, W, out=y)
    return (y * x).sum()


def read_without_grad(x):
    y = x * x
    view = y[:2]
    y.mul_(2.0)
    with torch.no_grad():
        view.sum()
    return (view * x[:2]).sum() + y.sum()


def detached(x):
    y = x * x
    y.detach().mul_(W)
    return (y * x).sum()


programs = pytest.mark.parametrize(
    "f",
    [norms, clamped, part, out, read_without_grad, detached],
    ids=lambda f: f.__name__,
)


@programs
@pytest.mark.parametrize(
    "around",
    [
        tl.functionalize,
        lambda f: Through()(f),
        lambda f: lambda x: tl.jet(f, (x,), ([ONES],))[0],
        lambda f: lambda x: tl.vmap(Through()(f))(x[None])[0],
        lambda f: lambda x: tl.functionalize(lambda x: tl.jet(f, (x,), ([ONES],))[0])(x),
    ],
    ids=["functionalize", "Layer", "jet", "vmap of Layer", "functionalize of jet"],
)
def test_gradient_is_that_of_the_function(f, around):
    """The write leaves its target's place in the graph as it was, as in plain autograd."""
    leaf = X.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(f(leaf), leaf)
    torch.testing.assert_close(around(f)(X), f(X))
    torch.testing.assert_close(tl.grad(around(f))(X), wanted)


@pytest.mark.parametrize(
    "f", [norms, clamped, part, read_without_grad, detached], ids=lambda f: f.__name__
)
def test_gradient_of_a_derivative_is_that_of_jvp(f):
    def by_jet(x):
        return tl.jet(f, (x,), ([ONES, None],))[1][0]

    def by_jvp(x):
        return tl.jvp(f, (x,), (ONES,))[1]

    torch.testing.assert_close(by_jet(X), by_jvp(X))
    torch.testing.assert_close(tl.grad(by_jet)(X), tl.grad(by_jvp)(X))


def test_gradient_of_second_derivatives():
    def trace(x):
        return tl.hessian(norms)(x).trace()

    def second(x):
        return tl.jet(norms, (x,), ([ONES, None],))[1][1]

    def twice(x):
        return tl.jvp(lambda x: tl.jvp(norms, (x,), (ONES,))[1], (x,), (ONES,))[1]

    wanted = tl.grad(trace)(X)
    torch.testing.assert_close(tl.grad(tl.laplacian(norms))(X), wanted)
    torch.testing.assert_close(tl.grad(lambda x: tl.hessian_diagonal(norms)(x).sum())(X), wanted)
    torch.testing.assert_close(tl.grad(second)(X), tl.grad(twice)(X))


def test_a_write_to_what_has_no_history_costs_nothing():
    class Count(tl.Layer):
        seen = 0

        def process(self, op, args, kwargs):
            Count.seen += 1
            return super().process(op, args, kwargs)

    def f(x):
        y = x * x
        with torch.no_grad():
            y.clamp_(max=0.3)
        return y

    with Count():
        tl.functionalize(f)(X)
    assert Count.seen == 2


def to_part(x):
    y = torch.zeros(3, dtype=torch.float64)
    y[1:] = x[1:] * x[1:]
    return y * 2


def to_row(x):
    y = torch.zeros(2, 3, dtype=torch.float64)
    y[1] = x * x
    return y.sum(0)


def to_diagonal(x):
    y = torch.zeros(3, 3, dtype=torch.float64)
    y.diagonal().copy_(x)
    return y @ x


def to_data(x):
    y = torch.zeros(3, dtype=torch.float64)
    y.data[1:] = x[1:]
    return y * x


def test_batched_writes_to_data():
    """Which no derivative of the tensor itself sees."""
    batched = tl.vmap(to_data)
    found = tl.jacrev(tl.functionalize(batched))(ROWS)
    torch.testing.assert_close(found, tl.jacrev(batched)(ROWS))


@pytest.mark.parametrize("f", [to_part, to_row, to_diagonal], ids=["part", "row", "diagonal"])
def test_batched_writes_through_views(f):
    """Of tensors that were made inside a vmap, which is inside functionalize or a layer."""
    batched = tl.vmap(f)
    v = ROWS + 1
    slope = tl.jvp(batched, (ROWS,), (v,))[1]
    jacobian = tl.jacfwd(batched)(ROWS)

    torch.testing.assert_close(tl.functionalize(batched)(ROWS), torch.stack([*map(f, ROWS)]))
    torch.testing.assert_close(tl.jacrev(tl.functionalize(batched))(ROWS), jacobian)
    torch.testing.assert_close(tl.jet(batched, (ROWS,), ([v],))[1][0], slope)
    by_map = tl.jet(lambda x: tl.map(f, x, batch_size=2), (ROWS,), ([v],))[1][0]
    torch.testing.assert_close(by_map, slope)
    pattern = tl.sparsity(batched, ROWS).to_dense().bool()
    assert not (jacobian.reshape(6, 6).bool() & ~pattern).any()


def test_complex_writes_with_parameters_of_plain_autograd():
    """torch has no derivative of slice_scatter for complex numbers."""

    def spectral(x):
        z = torch.fft.rfft(x)
        y = torch.zeros(3, dtype=z.dtype)
        y[:2] = z[:2] * w
        return torch.fft.irfft(y, n=4).pow(3).sum()

    x = torch.tensor([0.5, -0.3, 0.8, 1.1], dtype=torch.float64)
    w = torch.tensor([0.3 + 1j, -0.4], dtype=torch.complex128, requires_grad=True)
    gradients = [
        torch.autograd.grad(second, w)[0]
        for second in (
            tl.hessian(spectral)(x).trace(),
            tl.laplacian(spectral)(x),
            sum(tl.jet(spectral, (x,), ([e, None],))[1][1] for e in torch.eye(4).double()),
        )
    ]
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2)
    tl.sparsity(spectral, x)


MADE = {
    "a constant": torch.ones_like,
    "a function": lambda x: x**2,
}
DETACHED_WRITES = {
    "copied": lambda y, x: y.detach().copy_(x**2),
    "scaled": lambda y, x: y.detach().mul_(3),
    "a part": lambda y, x: y.detach()[:2].copy_(x[1:]),
    "of a view": lambda y, x: y[:2].detach().mul_(x[:2]),
    "data": lambda y, x: y.data.add_(x),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("write", DETACHED_WRITES)
def test_a_write_to_a_detached_tensor_leaves_its_derivatives(made, write):
    def f(x):
        y = MADE[made](x)
        DETACHED_WRITES[write](y, x)
        return y.sin() * x

    x = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    direction = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    value, tangent = tl.jvp(f, (x,), (direction,))
    got, (first,) = tl.jet(f, (x,), ((direction,),))
    torch.testing.assert_close((got, first), (value, tangent))
