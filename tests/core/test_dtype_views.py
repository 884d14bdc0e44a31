"""x.view(dtype) under transforms: complex numbers as pairs of real ones, and vice versa."""

import pytest
import torch

import torchlayers as tl

X = torch.tensor([0.7, 0.4, 0.9, 0.5], dtype=torch.float64)
W = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)


def of_pairs(x):
    return (x * 1).view(torch.complex128).abs().sum()


def of_pairs_plainly(x):
    return x.view(2, 2).square().sum(1).sqrt().sum()


def there_and_back(x):
    return (x.view(torch.complex128) * (2 + 1j)).view(torch.float64) @ W


def there_and_back_plainly(x):
    a, b = x.view(2, 2).unbind(1)
    return torch.stack([2 * a - b, a + 2 * b], 1).flatten() @ W


def written(x):
    y = x.clone()
    y.view(torch.complex128).mul_(2 + 1j)
    return y @ W


def same_dtype(x):
    y = x.clone()
    y.view(torch.float64).mul_(x)
    return y @ W


FUNCTIONS = {
    "of pairs": (of_pairs, of_pairs_plainly),
    "there and back": (there_and_back, there_and_back_plainly),
    "written": (written, there_and_back_plainly),
    "the same dtype": (same_dtype, lambda x: (x * x) @ W),
}
TRANSFORMS = {
    "grad": lambda f: tl.grad(f)(X),
    "jvp": lambda f: tl.jvp(f, (X,), (W,)),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "hessian": lambda f: tl.hessian(f)(X),
    "vmap of grad": lambda f: tl.vmap(tl.grad(f))(torch.stack([X, W])),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(f)(xs).sum())(torch.stack([X, W])),
    "functionalize of grad": lambda f: tl.functionalize(tl.grad(f))(X),
    "jet": lambda f: tl.jet(f, (X,), ((W, X),)),
    "laplacian": lambda f: tl.laplacian(f)(X),
    "compile": lambda f: tl.compile(tl.grad(f), backend="replay")(X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives(name, transform):
    f, plain = FUNCTIONS[name]
    torch.testing.assert_close(TRANSFORMS[transform](f), TRANSFORMS[transform](plain))


def test_complex_arguments():
    z = torch.view_as_complex(X.view(2, 2))
    gradient = tl.grad(lambda z: z.view(torch.float64) @ W)(z)
    assert torch.equal(torch.view_as_real(gradient).flatten(), W)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_single_precision(dtype):
    x = torch.ones(4) if dtype == torch.float32 else torch.ones(2, dtype=dtype)
    other = torch.complex64 if dtype == torch.float32 else torch.float32
    gradient = tl.grad(lambda x: x.view(other).abs().square().sum())(x)
    torch.testing.assert_close(gradient, 2 * x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_other_dtypes_are_constants_as_in_torch(dtype):
    seen = []
    tl.grad(lambda x: (seen.append(x.view(dtype)), x.sum())[1])(X)
    assert not seen[0].requires_grad
    assert torch.equal(tl.vmap(lambda x: x.view(dtype))(X[None])[0], X.view(dtype))


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (torch.ones(3), torch.complex64),
        (torch.ones(()), torch.complex64),
        (torch.ones((), dtype=torch.complex64), torch.float32),
        (torch.ones(4, 2).t(), torch.complex64),
    ],
)
def test_a_view_that_is_impossible_is_an_error(x, dtype):
    with pytest.raises(RuntimeError):
        x.view(dtype)
    with pytest.raises(RuntimeError):
        tl.vmap(lambda x: x.view(dtype))(x[None])
    with pytest.raises(RuntimeError):
        tl.grad(lambda x: x.view(dtype).abs().sum())(x)
