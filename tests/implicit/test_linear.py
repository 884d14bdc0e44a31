"""linear_solve, against torch.linalg."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, CheckError, StructureError
from torchlayers.implicit import ConvergenceWarning, linear_solve

N = 6
GENERATOR = torch.Generator().manual_seed(0)
RANDOM = torch.randn(N, N, dtype=torch.float64, generator=GENERATOR)
B = torch.randn(N, dtype=torch.float64, generator=GENERATOR)
EYE = torch.eye(N, dtype=torch.float64)
GENERAL = RANDOM / 3 + 3 * EYE
POSITIVE = RANDOM @ RANDOM.mT / 6 + EYE
BANDED = GENERAL.tril(1).triu(-1)
TALL = torch.randn(9, 4, dtype=torch.float64, generator=GENERATOR)
OF_TALL = torch.randn(9, dtype=torch.float64, generator=GENERATOR)

# The method, the tags, and a matrix.
CASES = {
    "lu": ("lu", (), GENERAL),
    "cholesky": ("cholesky", (), POSITIVE),
    "lower_triangular": ("lower_triangular", (), GENERAL.tril()),
    "upper_triangular": ("upper_triangular", (), GENERAL.triu()),
    "diagonal": ("diagonal", (), torch.diag(GENERAL.diagonal())),
    "tridiagonal": ("tridiagonal", (), BANDED),
    "cg": ("cg", (), POSITIVE),
    "bicgstab": ("bicgstab", (), GENERAL),
    "gmres": ("gmres", (), GENERAL),
    "qr of a square matrix": ("qr", (), GENERAL),
    "lsmr of a square matrix": ("lsmr", (), GENERAL),
    "normal_cg of a square matrix": ("normal_cg", (), GENERAL),
    "default": (None, (), GENERAL),
    "default, symmetric": (None, "symmetric", RANDOM + RANDOM.mT + 9 * EYE),
    "default, positive definite": (None, ("positive_definite",), POSITIVE),
    "default, diagonal": (None, "diagonal", torch.diag(GENERAL.diagonal())),
    "default, tridiagonal": (None, ["symmetric", "tridiagonal"], BANDED + BANDED.mT),
    "default, lower": (None, {"lower_triangular"}, GENERAL.tril()),
}
TALL_METHODS = [None, "qr", "lsmr", "normal_cg"]
each_case = pytest.mark.parametrize("name", CASES)
each_kind = pytest.mark.parametrize("kind", ["matrix", "function"])


def solved(name, kind, A, b, **options):
    method, tags, _ = CASES[name]
    of = A if kind == "matrix" else lambda x: A @ x
    return linear_solve(of, b, method, tags=tags, **options)


@each_case
@each_kind
def test_solutions(name, kind):
    A = CASES[name][2]
    solution = solved(name, kind, A, B)
    assert solution.converged and solution.residual < 1e-9
    torch.testing.assert_close(solution.value, torch.linalg.solve(A, B), rtol=1e-8, atol=1e-9)
    is_direct = solution.iterations == 0
    assert is_direct == (name.split()[0] not in ("cg", "bicgstab", "gmres", "lsmr", "normal_cg"))


NESTS = {
    "grad": lambda f: tl.grad(lambda s: f(s).pow(2).sum()),
    "jvp": lambda f: lambda s: tl.jvp(f, (s,), (s.cos(),))[1],
    "jvp_grad": lambda f: (
        lambda s: tl.jvp(tl.grad(lambda s: f(s).pow(3).sum()), (s,), (s.cos(),))[1]
    ),
    "vmap_grad": lambda f: (
        lambda s: tl.vmap(tl.grad(lambda s: f(s).pow(2).sum()))(torch.stack([s, 1.5 * s]))
    ),
}
S = torch.tensor([1.3, 0.8], dtype=torch.float64)


@pytest.mark.parametrize("nest", NESTS)
@each_case
@each_kind
@pytest.mark.sweep
def test_derivatives(name, kind, nest):
    """The parameters scale the matrix in two ways, and the right-hand side."""
    A = CASES[name][2]

    def matrix(s):
        return s[0] * A + s[1] * torch.diag(A.diagonal())

    def f(s):
        return solved(name, kind, matrix(s), B * s[0].sin()).value

    def plain(s):
        return torch.linalg.solve(matrix(s), B * s[0].sin())

    result = NESTS[nest](f)(S)
    torch.testing.assert_close(result, NESTS[nest](plain)(S), rtol=1e-6, atol=1e-7)


@each_case
@each_kind
@pytest.mark.sweep
def test_captured_and_batched(name, kind):
    A = CASES[name][2]
    scales = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)

    def f(scales):
        return tl.vmap(lambda s: solved(name, kind, s * A, B + s))(scales)

    def loss(scales):
        return f(scales).value.pow(2).sum()

    captured = tl.compile(lambda s: (f(s), tl.grad(loss)(s)), backend="replay")
    for s in (torch.ones(3, dtype=torch.float64), scales):
        solution, gradient = captured(s)
        assert solution.converged.all()
        plain = torch.linalg.solve(s[:, None, None] * A, B + s[:, None])
        torch.testing.assert_close(solution.value, plain, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(gradient, tl.grad(loss)(s), rtol=1e-6, atol=1e-7)


@each_kind
@pytest.mark.parametrize("method", TALL_METHODS)
def test_least_squares(method, kind):
    def f(s, b):
        A = s[0] * TALL + s[1] * TALL.sin()
        if kind == "matrix":
            return linear_solve(A, b, method)
        return linear_solve(lambda x: A @ x, b, method, x0=torch.zeros(4, dtype=b.dtype))

    def plain(s, b):
        return torch.linalg.lstsq(s[0] * TALL + s[1] * TALL.sin(), b[:, None])[0][:, 0]

    def normal(s, b):
        A = s[0] * TALL + s[1] * TALL.sin()
        return torch.linalg.solve(A.mT @ A, A.mT @ b)

    solution = f(S, OF_TALL)
    assert solution.converged
    torch.testing.assert_close(solution.value, plain(S, OF_TALL), rtol=1e-8, atol=1e-9)
    for argnum in (0, 1):
        result = tl.jacrev(lambda s, b: f(s, b).value, argnum)(S, OF_TALL)
        expected = tl.jacrev(normal, argnum)(S, OF_TALL)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)
        forward = tl.jacfwd(lambda s, b: f(s, b).value, argnum)(S, OF_TALL)
        torch.testing.assert_close(forward, expected, rtol=1e-6, atol=1e-7)

    def loss(f):
        return tl.grad(lambda s: tl.grad(lambda s: f(s).pow(3).sum())(s).sin().sum())(S)

    result, expected = loss(lambda s: f(s, OF_TALL).value), loss(lambda s: normal(s, OF_TALL))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_the_condition_number_is_not_squared():
    """With normal equations, single precision would leave no digit of this."""
    t = torch.linspace(0, 1, 40, dtype=torch.float64)
    A = torch.stack([t**i for i in range(7)], 1)
    x = torch.linspace(1, 2, 7, dtype=torch.float64)
    result = linear_solve(A.float(), (A @ x).float(), "qr").value
    torch.testing.assert_close(result.double(), x, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("method", ["lu", "cg", "gmres", "qr", "lsmr", "normal_cg"])
def test_right_hand_sides_of_any_size(method, size):
    A, b = POSITIVE.float(), B.float()
    solution = linear_solve(A, size * b, method)
    assert solution.converged
    expected = torch.linalg.solve(POSITIVE, B)
    torch.testing.assert_close(solution.value.double() / size, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["matrix", "function"])
@pytest.mark.parametrize("method", ["cg", "bicgstab", "gmres"])
def test_preconditioners_save_iterations(method, kind):
    n = 60
    scales = torch.logspace(0, 3, n, dtype=torch.float64)
    A = torch.diag(scales) + 0.1 * torch.ones(n, n, dtype=torch.float64)
    if method != "cg":
        A = A + 0.1 * torch.diag(scales[:-1], 1)
    inverse = torch.diag(1 / scales) if kind == "matrix" else lambda v: v / scales
    b = torch.ones(n, dtype=torch.float64)

    def f(s, **options):
        return linear_solve(s * A, b, method, maxiter=600, **options)

    one = torch.ones((), dtype=torch.float64)
    conditioned = f(one, preconditioner=inverse)
    assert conditioned.converged
    assert conditioned.iterations < f(one).iterations / 2
    torch.testing.assert_close(conditioned.value, torch.linalg.solve(A, b))
    gradient = tl.grad(lambda s: f(s, preconditioner=inverse).value.sum())(one)
    torch.testing.assert_close(gradient, -torch.linalg.solve(A, b).sum())


@each_kind
def test_complex_systems(kind):
    A = torch.complex(GENERAL, RANDOM / 4)
    b = torch.complex(B, B.flip(0))
    hermitian = A @ A.mH
    cases = [(A, m, ()) for m in ("lu", "gmres", "bicgstab", "qr", "lsmr", "normal_cg", None)]
    cases += [(hermitian, m, ()) for m in ("cholesky", "cg")]
    cases += [(A.tril(), None, "lower_triangular"), (torch.diag(A.diagonal()), None, "diagonal")]
    for matrix, method, tags in cases:

        def f(b, matrix=matrix, method=method, tags=tags):
            of = matrix if kind == "matrix" else lambda x: matrix @ x
            return linear_solve(of, b, method, tags=tags).value

        torch.testing.assert_close(f(b), torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-8)
        result = tl.grad(lambda b, f=f: f(b).abs().square().sum())(b)
        expected = tl.grad(lambda b, A=matrix: torch.linalg.solve(A, b).abs().square().sum())(b)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


def test_trees():
    def f(x):
        return {"p": 2 * x["p"] + x["q"][0], "q": (3 * x["q"][0] + x["p"].sum(),)}

    b = {"p": torch.ones(3).double(), "q": (torch.tensor(2.0).double(),)}
    for method in ("lu", "gmres", "qr"):
        x = linear_solve(f, b, method).value
        torch.testing.assert_close(f(x), b)


def test_functions_of_many_unknowns_need_no_matrix():
    n = 3000
    b = torch.linspace(1, 2, n, dtype=torch.float64)

    def positive(x):
        return 3 * x - 0.5 * x.roll(1) - 0.5 * x.roll(-1)

    for tags in ((), "positive_definite"):
        solution = linear_solve(positive, b, tags=tags)
        assert solution.converged and solution.iterations > 0
        torch.testing.assert_close(positive(solution.value), b)

    def tridiagonal(x):
        zero = x.new_zeros(1)
        return 3 * x - torch.cat([zero, x[:-1]]) - 0.7 * torch.cat([x[1:], zero])

    solution = linear_solve(tridiagonal, b, tags="tridiagonal")
    assert solution.converged
    torch.testing.assert_close(tridiagonal(solution.value), b)

    def tall(x):
        return torch.cat([x, x.roll(1) / 2, x[:5]])

    c = torch.cat([b, b, b[:5]])
    solution = linear_solve(tall, c, x0=torch.ones_like(b))
    assert solution.converged and solution.iterations > 0


@pytest.mark.parametrize("method", ["lu", "cholesky", "upper_triangular", "diagonal", "gmres"])
def test_a_singular_sample_leaves_the_others_alone(method):
    A = torch.diag(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
    singular = torch.diag(torch.tensor([2.0, 0.0, 4.0], dtype=torch.float64))
    matrices, b = torch.stack([A, singular, A]), torch.ones(3, dtype=torch.float64)

    def f(A, **options):
        return linear_solve(A, b, method, **options)

    with pytest.warns(ConvergenceWarning, match="linear_solve did not converge for 1 of 3"):
        solution = tl.vmap(f)(matrices)
    assert solution.converged.tolist() == [True, False, True]
    torch.testing.assert_close(solution.value[2], torch.linalg.solve(A, b))
    thrown = tl.vmap(lambda A: f(A, throw=True))
    for run in (thrown, tl.compile(thrown, backend="replay")):
        with pytest.raises(CheckError, match="linear_solve did not converge"):
            run(matrices)


def test_too_few_iterations_give_a_warning():
    for method in ("cg", "gmres", "lsmr", "normal_cg"):
        with pytest.warns(ConvergenceWarning, match="linear_solve did not converge"):
            linear_solve(POSITIVE, B, method, maxiter=1, tol=1e-9)


ERRORS = [
    (CallError, "method must be one of 'lu'", lambda A, b: linear_solve(A, b, "svd")),
    (
        CallError,
        "'qr', 'lsmr', 'normal_cg' for 9",
        lambda A, b: linear_solve(TALL, OF_TALL, "lu"),
    ),
    (CallError, "tags are 'symmetric'", lambda A, b: linear_solve(A, b, tags="sparse")),
    (CallError, "takes no preconditioner", lambda A, b: linear_solve(A, b, "lu", preconditioner=A)),
    (StructureError, "a row for each entry", lambda A, b: linear_solve(A, b[:2])),
    (StructureError, "there are 4 equations for 9", lambda A, b: linear_solve(TALL.mT, b[:4])),
    (
        StructureError,
        "must return a pytree like b",
        lambda A, b: linear_solve(lambda x: x[:2], b, "cg"),
    ),
]


@pytest.mark.parametrize(("error", "message", "call"), ERRORS)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call(GENERAL, B)
