"""custom_linear_solve and linear_transpose: what they see, what runs, and misuse."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, NotTensorError, StructureError
from torchlayers.implicit import ConvergenceWarning, solvers

torch.manual_seed(0)
A = torch.randn(4, 4, dtype=torch.float64) + 5 * torch.eye(4, dtype=torch.float64)
B = torch.randn(4, dtype=torch.float64)


def test_transpose_solve_is_needed_in_reverse_mode_only():
    def f(b):
        return tl.custom_linear_solve(lambda x: A @ x, b, lambda mv, b: torch.linalg.solve(A, b))

    torch.testing.assert_close(tl.jacfwd(f)(B), A.inverse())
    with pytest.raises(CallError, match="reverse mode needs transpose_solve"):
        tl.jacrev(f)(B)


def test_a_solver_of_ours_serves_for_the_transpose():
    def f(b):
        return tl.custom_linear_solve(lambda x: A @ x, b, solvers.bicgstab)

    torch.testing.assert_close(tl.jacrev(f)(B), A.inverse())


def test_has_aux():
    def solve(matvec, b):
        return torch.linalg.solve(A, b), "direct"

    def back(matvec, b):
        return torch.linalg.solve(A.mT, b), "direct"

    def f(b):
        return tl.custom_linear_solve(lambda x: A @ x, b, solve, back, has_aux=True)

    jacobian, aux = tl.jacrev(f, has_aux=True)(B)
    torch.testing.assert_close(jacobian, A.inverse())
    assert aux == "direct"


def test_pytrees():
    def matvec(x):
        y = A @ torch.cat([x["p"], x["q"][0]])
        return {"p": y[:1], "q": (y[1:],)}

    def f(b):
        x = tl.custom_linear_solve(matvec, {"p": b[:1], "q": (b[1:],)})
        return torch.cat([x["p"], x["q"][0]])

    torch.testing.assert_close(tl.jacrev(f)(B), A.inverse())
    torch.testing.assert_close(tl.jacfwd(f)(B), A.inverse())


def test_complex_systems():
    C = torch.complex(A, A.mT.sin())

    def f(s):
        return tl.custom_linear_solve(lambda x: (C * s) @ x, torch.complex(B, B.cos()) * s**2)

    def plain(s):
        return torch.linalg.solve(C * s, torch.complex(B, B.cos()) * s**2)

    s = torch.tensor(1.7, dtype=torch.float64)

    def real(f):
        return lambda s: (f(s) * torch.complex(B.sin(), B)).real.sum()

    torch.testing.assert_close(tl.grad(real(f))(s), tl.grad(real(plain))(s))
    torch.testing.assert_close(tl.jvp(f, (s,), (s,))[1], tl.jvp(plain, (s,), (s,))[1])


def test_a_batch_of_matrices_and_one_matrix_for_all():
    matrices = torch.stack([A, 2 * A, A.mT])

    def f(matrix, b):
        return tl.custom_linear_solve(lambda x: matrix @ x, b, solvers.gmres).sum()

    def plain(matrix, b):
        return torch.linalg.solve(matrix, b).sum()

    for dims in ((0, None), (None, 0), (0, 0)):
        args = [
            x if d == 0 else x[0] for x, d in zip((matrices, matrices[:, 0]), dims, strict=True)
        ]
        found = tl.vmap(tl.grad(f, (0, 1)), dims)(*args)
        torch.testing.assert_close(found, tl.vmap(tl.grad(plain, (0, 1)), dims)(*args))


def test_a_solution_that_is_none_says_so():
    def f(b):
        return tl.custom_linear_solve(lambda x: A @ x, b, lambda mv, b: b, lambda mv, b: b).sum()

    with pytest.warns(ConvergenceWarning, match="custom_linear_solve"):
        tl.grad(f)(B)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tl.custom_linear_solve(A, B), CallError, "matvec must be a function"),
        (lambda: tl.custom_linear_solve(torch.sin, 1.0), NotTensorError, "b must be a tensor"),
        (
            lambda: tl.custom_linear_solve(lambda x: A[:2] @ x, B),
            StructureError,
            "matvec must return",
        ),
        (
            lambda: tl.custom_linear_solve(lambda x: x, B, lambda mv, b: b[0]),
            StructureError,
            "solve must return",
        ),
        (lambda: tl.linear_transpose(lambda x: x, 1.0), NotTensorError, "example 0"),
    ],
)
def test_misuse(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_linear_transpose():
    C = torch.complex(A[:2], A[2:])
    v = torch.complex(B[:2], B[2:])
    like = torch.zeros(4, dtype=torch.complex128)
    (transposed,) = tl.linear_transpose(lambda x: C @ x, like)(v)
    torch.testing.assert_close(transposed, C.mT @ v)

    def of_trees(x, y):
        return {"a": A @ x["x"] + y, "b": x["x"].sum()}

    back = tl.linear_transpose(of_trees, {"x": B}, B)
    of_x, of_y = back({"a": B, "b": torch.tensor(2.0, dtype=torch.float64)})
    torch.testing.assert_close(of_x["x"], A.mT @ B + 2)
    torch.testing.assert_close(of_y, B)


def test_linear_transpose_of_a_transpose_and_in_transforms():
    def f(x):
        return A[:2] @ x

    again = tl.linear_transpose(lambda y: tl.linear_transpose(f, B)(y)[0], B[:2])
    torch.testing.assert_close(again(B)[0], f(B))
    batch = torch.stack([B[:2], B[2:]])
    torch.testing.assert_close(tl.vmap(tl.linear_transpose(f, B))(batch)[0], batch @ A[:2])

    def by_scale(s):
        return tl.linear_transpose(lambda x: s * f(x), B)(B[:2])[0].sum()

    s = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(by_scale)(s), (A[:2].mT @ B[:2]).sum())
