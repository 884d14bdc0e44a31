"""Sparse derivatives inside transforms: their entries travel as dense values with one pattern."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import StructureError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]
X = torch.tensor([0.4, -0.7, 1.2], dtype=torch.float64)
V = torch.tensor([0.3, 0.8, -0.5], dtype=torch.float64)
A = torch.tensor([[0.3, 0.8], [-0.5, 0.1], [0.2, 0.9]], dtype=torch.float64)


def cubes(x):
    return x**3 + x.roll(1) ** 2


DENSE = tl.jacfwd(cubes)
TRANSFORMS = {
    "jacfwd": lambda layout: tl.jacfwd(cubes, sparse=True, layout=layout),
    "jacrev": lambda layout: tl.jacrev(cubes, sparse=True, layout=layout),
}
NESTS = {
    "grad": tl.grad,
    "hvp": lambda f: lambda x: tl.hvp(f, (x,), (V,))[0],
    "vmap": lambda f: lambda x: tl.vmap(f)(torch.stack([x, 2 * x])),
    "vmap(grad)": lambda f: lambda x: tl.vmap(tl.grad(f))(torch.stack([x, 2 * x])),
    "grad(vmap)": lambda f: tl.grad(lambda x: tl.vmap(f)(torch.stack([x, 2 * x])).sum()),
    "hessian": tl.hessian,
    "jacfwd(jacfwd)": lambda f: tl.jacfwd(tl.jacfwd(f)),
    "sparse hessian": lambda f: lambda x: tl.hessian(f, sparse=True)(x).to_dense(),
    "laplacian": tl.laplacian,
    "checkpoint": lambda f: tl.hessian(tl.checkpoint(f)),
    "cond": lambda f: tl.grad(lambda x: tl.cond(x.sum() > 0, f, lambda x: x.sum(), x)),
}


def as_dense(matrix):
    return matrix if matrix.layout == torch.strided else matrix.to_dense()


USES = {
    "to_dense": as_dense,
    "matrix": lambda J: J @ A,
    "vector": lambda J: J @ V,
    "from the left": lambda J: A.T @ J,
    "transposed": lambda J: J.T @ V,
    "arithmetic": lambda J: as_dense(2 * J / 3 - J) + J,
    "sum": lambda J: J.sum(),
    "another": lambda J: (J * torch.ones(3, 3, dtype=torch.float64)).sum(),
}


def loss(derivative, use):
    return lambda x: (use(derivative(x)) ** 3).sum()


@pytest.mark.parametrize(("transform", "layout"), [("jacfwd", "coo"), ("jacrev", "csr")])
@pytest.mark.parametrize("nest", NESTS)
def test_nests(nest, transform, layout):
    use = USES["to_dense"]
    expected = NESTS[nest](loss(DENSE, use))(X)
    found = NESTS[nest](loss(TRANSFORMS[transform](layout), use))(X)
    torch.testing.assert_close(found, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("nest", ["grad", "hessian", "vmap(grad)", "cond"])
def test_nests_compiled(nest):
    sparse = TRANSFORMS["jacfwd"]("coo")
    compiled = tl.compile(NESTS[nest](loss(sparse, USES["to_dense"])), backend="replay")
    torch.testing.assert_close(compiled(X), NESTS[nest](loss(DENSE, USES["to_dense"]))(X))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("nest", ["grad", "hessian", "vmap(grad)"])
def test_uses(nest, use):
    if use == "another" and nest != "grad":  # torch's sparse tensors do it
        with pytest.raises((NotImplementedError, RuntimeError)):
            NESTS[nest](loss(TRANSFORMS["jacfwd"]("coo"), USES[use]))(X)
        return
    expected = NESTS[nest](loss(DENSE, USES[use]))(X)
    found = NESTS[nest](loss(TRANSFORMS["jacfwd"]("coo"), USES[use]))(X)
    torch.testing.assert_close(found, expected)


LEAVING = {
    "alone": lambda J: J(X),
    "vmap": lambda J: tl.vmap(J)(torch.stack([X] * 6)),  # as many as there are entries
    "torch.func.vmap": lambda J: torch.func.vmap(J)(torch.stack([X] * 2)),
    "vmap(vmap)": lambda J: tl.vmap(tl.vmap(J))(torch.stack([X] * 2)[None]),
    "jvp": lambda J: tl.jvp(J, (X,), (V,))[1],
    "vjp": lambda J: tl.vjp(J, X)[0],
    "aux": lambda J: tl.grad(lambda x: (x.sum(), J(x)), has_aux=True)(X)[1],
    "linearize": lambda J: tl.linearize(J, X)[1](V),
    "map": lambda J: tl.map(J, torch.stack([X] * 2)),
    "functionalize": lambda J: tl.functionalize(J)(X),
    "compile": lambda J: tl.compile(J, backend="replay")(X),
    "compile(vmap)": lambda J: tl.compile(tl.vmap(J), backend="replay")(torch.stack([X] * 6)),
}


@pytest.mark.parametrize("leaves", LEAVING)
def test_outside_transforms_it_is_a_sparse_tensor(leaves):
    found, expected = (LEAVING[leaves](J) for J in (TRANSFORMS["jacfwd"]("coo"), DENSE))
    assert type(found) is torch.Tensor
    assert found.layout == torch.sparse_coo
    torch.testing.assert_close(found.to_dense(), expected)


@pytest.mark.parametrize("transform", [tl.jacfwd, tl.jacrev])
def test_the_jacobian_of_a_sparse_matrix_is_dense(transform):
    found = transform(TRANSFORMS["jacfwd"]("coo"))(X)
    torch.testing.assert_close(found, transform(DENSE)(X))


def test_cotangents_of_a_sparse_matrix_are_matrices():
    output, pull = tl.vjp(TRANSFORMS["jacfwd"]("coo"), X)
    expected = tl.vjp(DENSE, X)[1](output.to_dense())
    for cotangent in (output, output.to_dense()):
        torch.testing.assert_close(pull(cotangent), expected)
    with pytest.raises(StructureError, match="cotangents must have the structure"):
        pull(output.to_dense()[0])


@pytest.mark.parametrize("sparse", ["yes", object()])
def test_sparse_is_a_pattern(sparse):
    for transform in (tl.jacfwd, tl.jacrev, tl.hessian):
        with pytest.raises(StructureError, match=r"sparse= .* must be True, a pattern"):
            transform(cubes, sparse=sparse)
