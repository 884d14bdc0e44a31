"""hvp: Hessian-vector products."""

import pytest
import torch
import torch.func
from torch.utils._pytree import tree_leaves, tree_structure

import torchlayers as tl
from tests.support.calls import structures
from torchlayers.errors import NotScalarError, StructureError

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
T = torch.tensor([1.0, 0.3, -2.0], dtype=torch.float64)
Y = torch.tensor([[1.5, 0.7, -0.2], [0.1, -0.6, 0.9]], dtype=torch.float64)
U = torch.tensor([[0.2, -1.0, 0.4], [1.0, 0.5, -0.3]], dtype=torch.float64)


def of_one(x):
    return (x**3 * x.sin()).sum() + x.prod()


def of_two(x, y):
    return (y @ x).tanh().sum() * x.exp().sum() + (y**2).sum()


def hessian_times(f, x, t):
    return torch.func.hessian(f)(x) @ t


def test_one_primal():
    (product,) = tl.hvp(of_one, (X,), (T,))
    torch.testing.assert_close(product, hessian_times(of_one, X, T))


def test_several_primals():
    """The contributions of both vectors add up."""

    def flat(z):
        return of_two(z[:3], z[3:].view(2, 3))

    of_x, of_y = tl.hvp(of_two, (X, Y), (T, U))
    expected = hessian_times(flat, torch.cat([X, Y.flatten()]), torch.cat([T, U.flatten()]))
    torch.testing.assert_close(torch.cat([of_x, of_y.flatten()]), expected)


@structures
def test_primals_may_be_structures(pack):
    def of_leaves(*leaves):
        return torch.stack([(x**3).sum() for x in leaves]).prod()

    primals, tangents = pack(X, Y), pack(T, U)
    (product,) = tl.hvp(lambda tree: of_leaves(*tree_leaves(tree)), (primals,), (tangents,))
    expected = tl.hvp(of_leaves, tuple(tree_leaves(primals)), tuple(tree_leaves(tangents)))
    torch.testing.assert_close(tuple(tree_leaves(product)), expected)
    assert tree_structure(product) == tree_structure(primals)


@pytest.mark.parametrize("aux", [1, "name", None, {"a": [X]}])
def test_aux_is_passed_through(aux):
    product, passed = tl.hvp(lambda x: (of_one(x), aux), (X,), (T,), has_aux=True)
    torch.testing.assert_close(product, tl.hvp(of_one, (X,), (T,)))
    assert passed is aux or passed == aux


def test_aux_is_as_func_gives_it():
    _, aux = tl.hvp(lambda x: (of_one(x), x * 2), (X,), (T,), has_aux=True)
    torch.testing.assert_close(aux, X * 2)
    assert not torch._C._functorch.is_gradtrackingtensor(aux)


def test_vmap_over_vectors_gives_the_hessian():
    rows = tl.vmap(lambda t: tl.hvp(of_one, (X,), (t,))[0])(torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rows, torch.func.hessian(of_one)(X))


def test_vmap_over_points():
    points, vectors = torch.stack([X, T]), torch.stack([T, X])
    (products,) = tl.vmap(lambda x, t: tl.hvp(of_one, (x,), (t,)))(points, vectors)
    expected = [hessian_times(of_one, x, t) for x, t in zip(points, vectors, strict=True)]
    torch.testing.assert_close(products, torch.stack(expected))


def test_grad_of_a_curvature():
    def curvature(hvp):
        return lambda x: hvp(x) @ T

    expected = torch.func.grad(curvature(lambda x: hessian_times(of_one, x, T)))(X)
    found = tl.grad(curvature(lambda x: tl.hvp(of_one, (x,), (T,))[0]))(X)
    torch.testing.assert_close(found, expected)


def test_jvp_of_hvp():
    _, found = tl.jvp(lambda x: tl.hvp(of_one, (x,), (T,))[0], (X,), (T,))
    expected = torch.func.jvp(lambda x: hessian_times(of_one, x, T), (X,), (T,))[1]
    torch.testing.assert_close(found, expected)


def test_plain_autograd_differentiates_the_product():
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(tl.hvp(of_one, (x,), (T,))[0].sum(), x)
    expected = torch.func.jacrev(lambda x: hessian_times(of_one, x, T).sum())(X)
    torch.testing.assert_close(found, expected)


def test_unused_primal_has_a_product_of_zeros():
    products = tl.hvp(lambda x, y: of_one(x), (X, Y), (T, U))
    torch.testing.assert_close(products, (hessian_times(of_one, X, T), torch.zeros_like(Y)))


def test_float32():
    (product,) = tl.hvp(of_one, (X.float(),), (T.float(),))
    torch.testing.assert_close(product, hessian_times(of_one, X, T).float())


def test_a_complex_primal():
    """Agrees with torch.func's forward over reverse."""
    z, t = torch.complex(X, T), torch.complex(T, X)

    def f(z):
        return (z**3).abs().sum()

    _, expected = torch.func.jvp(torch.func.grad(f), (z,), (t,))
    torch.testing.assert_close(tl.hvp(f, (z,), (t,)), (expected,))


@pytest.mark.parametrize("primals", [X, [X], {"x": X}])
def test_primals_must_be_a_tuple(primals):
    said = (
        "torchlayers: hvp: primals must be a tuple, so that func(*primals) can be called; "
        f"got {type(primals).__name__}. For one argument write (x,)."
    )
    with pytest.raises(StructureError) as refused:
        tl.hvp(of_one, primals, (T,))
    assert str(refused.value) == said
    assert tl.current_stack() == ()


REFUSED = {
    "a vector for several primals": (of_two, (X, Y), (T,), StructureError),
    "a vector of another shape": (of_one, (X,), (T[:2],), RuntimeError),
    "a vector that is no tensor": (of_one, (X,), (1.0,), TypeError),
    "a function of many values": (torch.sin, (X,), (T,), NotScalarError),
    "a function of a complex number": (
        lambda x: torch.complex(x, x).sum(),
        (X,),
        (T,),
        RuntimeError,
    ),
}


@pytest.mark.parametrize(
    ("f", "primals", "tangents", "error"), REFUSED.values(), ids=REFUSED.keys()
)
def test_misuse_of_grad_and_jvp_is_rejected(f, primals, tangents, error):
    with pytest.raises(error, match=r"^torchlayers: hvp: "):
        tl.hvp(f, primals, tangents)
    assert tl.current_stack() == ()
