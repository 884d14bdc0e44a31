"""Captured tensors without strides (sparse): operators on them are left unsimplified."""

import warnings

import pytest
import torch

import torchlayers as tl
from tests.compiler.passes.simplified import operators
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes import simplify

DENSE = torch.tensor([[0.0, 2.0, 0.0], [-1.0, 0.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
X = torch.linspace(-1, 2, 6, dtype=torch.float64).reshape(3, 2)
V = torch.linspace(0.5, 2, 3, dtype=torch.float64)
LAYOUTS = {
    "COO": DENSE.to_sparse,
    "COO with repeated places": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 2, 1]]),
        torch.tensor([1.5, -1.0, 0.5, 3.0, 0.5], dtype=torch.float64),
    ),
    "CSR": DENSE.to_sparse_csr,
    "CSC": DENSE.to_sparse_csc,
    "BSR": lambda: torch.eye(4, dtype=torch.float64)[:, [1, 0, 3, 2]].to_sparse_bsr((2, 2)),
}
PROGRAMS = {
    "a product of matrices": lambda s, x, v: s @ x,
    "a product with a vector": lambda s, x, v: s @ v,
    "a product of three": lambda s, x, v: (s @ x) @ x.mT,
    "a product that is transposed": lambda s, x, v: (s @ x).mT @ v,
    "a sum of a product": lambda s, x, v: torch.addmm(x * 0, s, x) + x,
    "the same twice": lambda s, x, v: (s @ x).sin() + (s @ x).cos(),
    "a tangent": lambda s, x, v: tl.jvp(lambda x: (s @ x).sin(), (x,), (x.cos(),))[1],
    "a gradient": lambda s, x, v: tl.grad(lambda x: (s @ x).sin().sum())(x),
    "a Hessian": lambda s, x, v: tl.hessian(lambda v: (s @ v).sin().sum())(v),
    "samples": lambda s, x, v: tl.vmap(lambda row: s @ row, in_dims=1)(x),
}

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


NO_KERNEL = pytest.mark.xfail(
    raises=RuntimeError,
    strict=True,
    reason="torch has no product with the transpose of a matrix in BSR",
)
SPARSE = [
    pytest.param(
        layout,
        program,
        marks=NO_KERNEL
        if (layout, program[2:]) in (("BSR", "gradient"), ("BSR", "Hessian"))
        else (),
    )
    for layout in LAYOUTS
    for program in PROGRAMS
]


@pytest.mark.sweep
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("layout", "program"), SPARSE)
def test_sparse_captured(layout, program, check):
    s, f = LAYOUTS[layout](), PROGRAMS[program]
    x, v = (torch.cat((each, each[:1])) if s.shape[0] == 4 else each for each in (X, V))
    compiled = tl.compile(lambda x, v: f(s, x, v), backend="replay", check=check)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torchlayers")
        torch.testing.assert_close(compiled(x, v), f(s.to_dense(), x, v))


def test_dense_operators_are_still_simplified():
    s = LAYOUTS["COO"]()

    def func(x):
        return (s @ x) * 1 + (s @ x).view(3, 2).view(6).view(3, 2)

    graph = simplify(record(func, (X,)).graph)
    assert operators(graph) == ["mm", "add"]


def test_write_to_a_sparse_result():
    def func(x):
        s = torch.sparse_coo_tensor(torch.tensor([[0, 2], [1, 1]]), x[0], (3, 3))
        s.mul_(3)
        return s, x * 1

    compiled = tl.compile(func, backend="replay")
    for x in (X, X + 1):
        result, other = compiled(x)
        assert result.layout is torch.sparse_coo
        torch.testing.assert_close(result.to_dense(), func(x)[0].to_dense())
        torch.testing.assert_close(other, x)


def test_sparse_tensors_are_replayed_without_inductor():
    s = LAYOUTS["CSR"]()
    compiled = tl.compile(lambda x: s @ x, backend="inductor")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torchlayers")
        torch.testing.assert_close(compiled(X), DENSE @ X)
    assert "sparse tensors, which inductor does not support" in compiled.report().signatures[0].how
