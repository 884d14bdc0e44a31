"""Nests of transforms around a function from a vector to a number, and their comparison."""

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import ambient

X = torch.tensor([0.5, -1.0, 1.5], dtype=torch.float64)
V = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
BATCH = torch.stack([X, V, X * V])
W = torch.tensor([[0.2, -1.0, 0.4], [0.3, 0.1, 0.9], [-0.5, 0.8, 0.1]], dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)


def gradient_by_autograd(call):
    """Differentiates the transformed function by plain autograd."""

    def around(f):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(call(f, x), x)

    return around


NESTS = {
    "grad": lambda f: tl.grad(f)(X),
    "vjp": lambda f: tl.vjp(f, X)[1](ONE),
    "vjp, twice": lambda f: [tl.vjp(f, X)[1](ONE) for _ in range(2)],
    "grad(grad)": lambda f: tl.grad(lambda x: (tl.grad(f)(x) * V).sum())(X),
    "jvp(grad)": lambda f: tl.jvp(tl.grad(f), (X,), (V,)),
    "grad(jvp)": lambda f: tl.grad(lambda x: tl.jvp(f, (x,), (V,))[1])(X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(BATCH),
    "grad(vmap)": lambda f: tl.grad(lambda batch: tl.vmap(f)(batch).sin().sum())(BATCH),
    "vmap(vmap(grad))": lambda f: tl.vmap(tl.vmap(tl.grad(f)))(BATCH[None]),
    "jacrev(grad)": lambda f: tl.jacrev(tl.grad(f))(X),
    "jacrev(grad), in chunks": lambda f: tl.jacrev(tl.grad(f), chunk_size=2)(X),
    "hessian": lambda f: tl.hessian(f)(X),
    "jvp(jvp)": lambda f: tl.jvp(lambda x: tl.jvp(f, (x,), (V,))[1], (X,), (V,)),
    "grad(vmap(grad))": lambda f: tl.grad(lambda b: (tl.vmap(tl.grad(f))(b) ** 2).sum())(BATCH),
    "autograd(grad)": gradient_by_autograd(lambda f, x: (tl.grad(f)(x) * V).sum()),
    "autograd(vmap)": gradient_by_autograd(lambda f, x: tl.vmap(f)(BATCH * x).sin().sum()),
    "autograd(jvp)": gradient_by_autograd(lambda f, x: tl.jvp(f, (x,), (V,))[1]),
    "grad(grad(grad))": lambda f: tl.grad(
        lambda x: (tl.grad(lambda x: (tl.grad(f)(x) * V).sum())(x) ** 2).sum()
    )(X),
}
nests = pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)


def assert_same(ours, theirs, exactly=True):
    """Compares bitwise, or up to rounding."""
    our_leaves, their_leaves = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    assert len(our_leaves) == len(their_leaves)
    for our, their in zip(our_leaves, their_leaves, strict=True):
        assert isinstance(our, Tensor)
        torch.testing.assert_close(our, their, **({"rtol": 0, "atol": 0} if exactly else {}))


def compare(nest, f, plain, exactly=True):
    """Checks that a nest of f equals that of `plain`; they differ only in what they save."""
    torch.manual_seed(0)
    wanted = nest(plain)
    torch.manual_seed(0)
    before = ambient()
    found = nest(f)
    assert ambient() == before
    assert_same(found, wanted, exactly)
