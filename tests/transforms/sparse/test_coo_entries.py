"""torch.sparse_coo_tensor of values that a transform differentiates or batches."""

import pytest
import torch

import torchlayers as tl
from tests.transforms.sparse.test_entries import NESTS
from torchlayers.errors import StructureError, TransformError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]
D = torch.float64
# The entry (1, 2) is there twice.
INDICES = torch.tensor([[1, 0, 2, 1], [2, 1, 0, 2]])
SIZE = (3, 4)
V = torch.tensor([0.4, -0.7, 1.2, 0.9], dtype=D)
X = torch.tensor([[0.3, 0.8], [-0.5, 0.1], [0.2, 0.9], [1.1, -0.4]], dtype=D)
WEIGHTS = torch.arange(12.0, dtype=D).reshape(SIZE) / 7


def sparse(values):
    return torch.sparse_coo_tensor(INDICES, values, SIZE)


def dense(values):
    return torch.zeros(SIZE, dtype=D).index_put(tuple(INDICES), values, accumulate=True)


def as_dense(matrix):
    return (
        matrix if getattr(matrix, "layout", torch.strided) == torch.strided else matrix.to_dense()
    )


def is_sparse(matrix):
    return matrix.layout == torch.sparse_coo


def another():
    return torch.sparse_coo_tensor([[0, 2], [1, 3]], V[:2], SIZE)


USES = {
    "to_dense": as_dense,
    "torch.sparse.mm": lambda S: torch.sparse.mm(S, X) if is_sparse(S) else S @ X,
    "matrix": lambda S: S @ X,
    "vector": lambda S: torch.mv(S, X[:, 0]),
    "from the left": lambda S: X[:3].T @ S,
    "a vector from the left": lambda S: X[:3, 1] @ S,
    "transposed": lambda S: S.t() @ X[:3],
    "sum": lambda S: S.sum(),
    "torch.sparse.sum": lambda S: torch.sparse.sum(S) if is_sparse(S) else S.sum(),
    "sum of a dimension": lambda S: (
        torch.sparse.sum(S, dim=1).to_dense() if is_sparse(S) else S.sum(1)
    ),
    "addmm": lambda S: (
        torch.sparse.addmm(X[:3], S, X, alpha=2.0) if is_sparse(S) else X[:3] + 2 * (S @ X)
    ),
    "arithmetic": lambda S: as_dense(2 * S / 3 - S) + S,
    "added to another": lambda S: as_dense(
        S + another() if is_sparse(S) else S + another().to_dense()
    ),
    "coalesced": lambda S: S.coalesce().values() if is_sparse(S) else S[[0, 1, 2], [1, 2, 0]],
    "times a dense one": lambda S: as_dense(S * WEIGHTS),
}


def loss(matrix, use):
    return lambda v: (use(matrix(v)) ** 3).sum()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("nest", ["grad", "hessian", "vmap", "vmap(grad)"])
def test_uses(nest, use):
    expected, found = (NESTS[nest](loss(matrix, USES[use]))(V) for matrix in (dense, sparse))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("nest", [nest for nest in NESTS if nest != "hvp"])
def test_nests(nest):
    use = USES["torch.sparse.mm"]
    expected, found = (NESTS[nest](loss(matrix, use))(V) for matrix in (dense, sparse))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("use", ["torch.sparse.mm", "to_dense", "coalesced"])
@pytest.mark.parametrize("transform", [tl.grad, tl.hessian, tl.jacfwd, lambda f: f])
def test_compiled(transform, use):
    compiled = tl.compile(transform(loss(sparse, USES[use])), backend="replay")
    torch.testing.assert_close(compiled(V), transform(loss(dense, USES[use]))(V))


@pytest.mark.parametrize("transform", [tl.jacfwd, tl.jacrev])
def test_jacobians_of_a_product(transform):
    found, expected = (transform(lambda v, m=matrix: m(v) @ X)(V) for matrix in (sparse, dense))
    torch.testing.assert_close(found, expected)


def test_gradients_of_both_factors_by_finite_differences():
    def product(values, x):
        gradients = tl.grad(lambda v, x: ((sparse(v) @ x) ** 3).sum(), (0, 1))(values, x)
        return gradients

    inputs = V.clone().requires_grad_(), X.clone().requires_grad_()
    assert torch.autograd.gradcheck(product, inputs)


def test_indices_of_each_sample():
    batch = torch.stack([INDICES, INDICES.flip(1)])

    def f(indices, v):
        return (torch.sparse_coo_tensor(indices, v, SIZE) @ X).square().sum()

    found = tl.vmap(tl.grad(f, 1), in_dims=(0, None))(batch, V)
    torch.testing.assert_close(found, torch.stack([tl.grad(f, 1)(each, V) for each in batch]))


LEAVING = {
    "vmap": (lambda f: tl.vmap(f)(torch.stack([V, 2 * V])), lambda: [V, 2 * V]),
    "vmap(vmap)": (lambda f: tl.vmap(tl.vmap(f))(V[None, None]), lambda: [[V]]),
    "vjp": (lambda f: tl.vjp(f, V)[0], lambda: V),
    "jvp": (lambda f: tl.jvp(f, (V,), (2 * V,))[1], lambda: 2 * V),
    "aux": (lambda f: tl.grad(lambda v: (v.sum(), f(v)), has_aux=True)(V)[1], lambda: V),
    "compile": (lambda f: tl.compile(tl.vmap(f), backend="replay")(V[None]), lambda: [V]),
}


@pytest.mark.parametrize("leaves", LEAVING)
def test_outside_transforms_it_is_a_sparse_tensor(leaves):
    def all_dense(values):
        return torch.stack([*map(all_dense, values)]) if isinstance(values, list) else dense(values)

    transform, values = LEAVING[leaves]
    found = transform(sparse)
    assert type(found) is torch.Tensor
    assert found.layout == torch.sparse_coo
    torch.testing.assert_close(found.to_dense(), all_dense(values()))


def test_a_batch_of_sparse_tensors_inside_a_transform():
    def total(v, matrix):
        return (as_dense(tl.vmap(matrix)(torch.stack([v, v * v]))) ** 3).sum()

    found, expected = (tl.hessian(lambda v, m=m: total(v, m))(V) for m in (sparse, dense))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("transform", [tl.jacfwd, tl.jacrev])
def test_the_jacobian_of_a_sparse_tensor_is_dense(transform):
    torch.testing.assert_close(transform(sparse)(V), transform(dense)(V))


def test_cotangents_of_a_sparse_tensor_are_tensors_of_its_shape():
    output, pull = tl.vjp(sparse, V)
    (expected,) = tl.vjp(dense, V)[1](WEIGHTS)
    torch.testing.assert_close(pull(WEIGHTS)[0], expected)
    torch.testing.assert_close(pull(output)[0], tl.vjp(dense, V)[1](output.to_dense())[0])


@pytest.mark.parametrize("transform", [tl.grad, tl.functionalize, tl.laplacian, tl.hessian])
def test_indices_made_inside_and_no_size(transform):
    def f(v):
        indices = torch.tensor([[0, 1, 0, 1], [1, 2, 1, 2]])
        return (torch.sparse_coo_tensor(indices, v).coalesce().values() ** 2).sum()

    expected = transform(lambda v: (v[:2] + v[2:]).square().sum())(V)
    torch.testing.assert_close(transform(f)(V), expected)


def test_captured_indices_are_those_of_the_call():
    def f(v, indices):
        return (torch.sparse_coo_tensor(indices, v, SIZE).coalesce() @ X).square().sum()

    compiled = tl.compile(tl.grad(f), backend="replay")
    for indices in (INDICES, INDICES.flip(1)):
        torch.testing.assert_close(compiled(V, indices), tl.grad(f)(V, indices))
    for matrix, text in (
        (lambda v, i: torch.sparse_coo_tensor(i, v), "Pass size"),
        (lambda v, i: torch.sparse_coo_tensor(i, v, SIZE).coalesce().values(), "is_coalesced=True"),
    ):
        f = tl.grad(lambda v, i, m=matrix: m(v, i).sum())
        with pytest.warns(UserWarning, match=text):
            torch.testing.assert_close(tl.compile(f, backend="replay")(V, INDICES), f(V, INDICES))


def test_its_attributes_are_those_of_a_sparse_tensor():
    def check(v):
        found, expected = sparse(v), sparse(V)
        for name in ("shape", "layout", "ndim", "dtype", "is_sparse", "device"):
            assert getattr(found, name) == getattr(expected, name)
        for name in ("dim", "sparse_dim", "dense_dim", "_nnz", "is_coalesced", "numel", "size"):
            assert getattr(found, name)() == getattr(expected, name)()
        coalesced = found.coalesce()
        assert coalesced.is_coalesced()
        assert torch.equal(coalesced.indices(), expected.coalesce().indices())
        return v.sum()

    tl.grad(check)(V)


# Refused: what is done, the error, and its words.
REFUSED = {
    "values that may repeat": (tl.grad, lambda S: S.values(), RuntimeError, r"Call coalesce\(\)"),
    "a write": (tl.grad, lambda S: S.mul_(2), TransformError, "mul_ writes to a torch.sparse_coo"),
    "what torch batches not": (tl.vmap, torch.sin, TransformError, r"to_dense\(\) for everything"),
    "a factor that does not fit": (tl.grad, lambda S: S @ X[:2], StructureError, "with 2 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    transform, use, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        transform(lambda v: use(sparse(v)).sum())(V[None] if transform is tl.vmap else V)


def test_an_index_outside_the_size():
    def f(v):
        return torch.sparse_coo_tensor([[0, 1], [0, 4]], v, SIZE).to_dense().sum()

    with pytest.raises(StructureError, match=r"the index \(1, 4\) is outside the size \(3, 4\)"):
        tl.grad(f)(V[:2])


def test_torchscript_knows_the_function():
    @torch.jit.script
    def scripted(indices: torch.Tensor, values: torch.Tensor):
        return torch.sparse_coo_tensor(indices, values, [3, 4], dtype=values.dtype).to_dense()

    torch.testing.assert_close(scripted(INDICES, V), dense(V))


def test_outside_transforms_torch_makes_it():
    x = V.clone().requires_grad_()
    sparse(x).to_dense().sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(V))
    assert torch.sparse_coo_tensor(SIZE).shape == SIZE
