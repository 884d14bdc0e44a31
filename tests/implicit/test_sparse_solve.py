"""spsolve, against dense solutions."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import StructureError
from torchlayers.implicit.solvers import spsolve

N = 7
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")


def _matrix(dtype):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(N, N, dtype=dtype, generator=generator)
    return A * (torch.rand(N, N, generator=generator) < 0.4) + 4 * torch.eye(N, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_solutions_and_derivatives(dtype):
    A = _matrix(dtype)
    csr = A.to_sparse_csr()
    values, columns, starts = csr.values(), csr.col_indices(), csr.crow_indices()
    rows = torch.repeat_interleave(torch.arange(N), starts.diff())
    b = torch.arange(1, N + 1).to(dtype)

    def sparse(values, b):
        return spsolve(values, columns, starts, b)

    def dense(values, b):
        return torch.linalg.solve(torch.zeros_like(A).index_put((rows, columns), values), b)

    def loss(f):
        return lambda values, b: (f(values, b).abs() ** 2).sum()

    nests = [
        lambda f: f(values, b),
        lambda f: tl.grad(loss(f), (0, 1))(values, b),
        lambda f: tl.jvp(f, (values, b), (values.sin(), b.cos()))[1],
        lambda f: tl.jvp(tl.grad(loss(f)), (values, b), (values.sin(), b.cos()))[1],
        lambda f: tl.vmap(tl.grad(loss(f)))(
            torch.stack([values, 2 * values]), torch.stack([b, b + 1])
        ),
    ]
    for nest in nests:
        torch.testing.assert_close(nest(sparse), nest(dense))
    compiled = tl.compile(tl.grad(loss(sparse), (0, 1)), backend="replay")
    torch.testing.assert_close(compiled(values, b), tl.grad(loss(dense), (0, 1))(values, b))


def test_shapes_that_do_not_fit():
    csr = _matrix(torch.float64).to_sparse_csr()
    with pytest.raises(StructureError, match="longer than b by one"):
        spsolve(csr.values(), csr.col_indices(), csr.crow_indices(), torch.ones(N + 1))
