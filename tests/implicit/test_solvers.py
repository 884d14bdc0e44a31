"""The solvers, against torch.linalg and SciPy's answers."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import NotTensorError
from torchlayers.implicit import ConvergenceWarning, solvers


def _system(n, kind, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(n, n, dtype=dtype, generator=generator) / n**0.5
    eye = torch.eye(n, dtype=dtype)
    A = A @ A.mT + 0.1 * eye if kind == "positive" else A + 2.5 * eye
    return A, torch.randn(n, dtype=dtype, generator=generator)


SOLVERS = [
    (solvers.cg, "positive"),
    (solvers.bicgstab, "general"),
    (solvers.gmres, "general"),
    (solvers.dense, "general"),
]
each_solver = pytest.mark.parametrize(
    ("solve", "kind"), SOLVERS, ids=lambda x: getattr(x, "__name__", x)
)


@each_solver
@pytest.mark.parametrize("n", [1, 7, 150])
def test_solutions(solve, kind, n):
    A, b = _system(n, kind)
    x = solve(lambda v: A @ v, b)
    torch.testing.assert_close(x, torch.linalg.solve(A, b), rtol=1e-7, atol=1e-9)


@each_solver
def test_samples_of_different_difficulty(solve, kind):
    A, b = _system(12, kind)
    matrices = torch.stack([A, torch.eye(12, dtype=A.dtype), A + 9 * torch.eye(12, dtype=A.dtype)])

    def f(A):
        return solve(lambda v: A @ v, b)

    torch.testing.assert_close(tl.vmap(f)(matrices), torch.linalg.solve(matrices, b))


@each_solver
def test_derivatives(solve, kind):
    A, b = _system(5, kind)

    def f(s):
        return solve(lambda v: s * (A @ v) + s**2 * v, b.sin() * s**3).sum()

    def plain(s):
        return torch.linalg.solve(s * A + s**2 * torch.eye(5, dtype=A.dtype), b.sin() * s**3).sum()

    s = torch.tensor(1.3, dtype=A.dtype)
    torch.testing.assert_close(tl.grad(tl.grad(f))(s), tl.grad(tl.grad(plain))(s))


@each_solver
def test_single_precision_reaches_its_tolerance_without_a_warning(solve, kind):
    A, b = _system(60, kind, torch.float32)
    x = solve(lambda v: A @ v, b)
    assert (A @ x - b).norm() < 1e-3 * b.norm()


def test_a_right_hand_side_of_zeros():
    A, b = _system(6, "positive")
    for solve, _ in SOLVERS:
        assert solve(lambda v: A @ v, torch.zeros_like(b)).eq(0).all()


def test_a_start_at_the_solution_takes_no_steps():
    A, b = _system(30, "positive")
    x = torch.linalg.solve(A, b)
    for solve in (solvers.cg, solvers.bicgstab, solvers.gmres):
        calls = []

        def matvec(v, calls=calls):
            calls.append(v)
            return A @ v

        with torch.no_grad():
            solve(matvec, b, x, tol=1e-8)
        assert len(calls) == 2  # the first residual, and the check of the result


def test_gmres_is_restarted():
    A, b = _system(40, "general")
    x = solvers.gmres(lambda v: A @ v, b, restart=5)
    torch.testing.assert_close(x, torch.linalg.solve(A, b), rtol=1e-7, atol=1e-9)


def test_gmres_solves_what_bicgstab_can_not():
    A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(solvers.gmres(lambda v: A @ v, b), torch.linalg.solve(A, b))
    with pytest.warns(ConvergenceWarning, match="bicgstab did not converge"):
        solvers.bicgstab(lambda v: A @ v, b)


@pytest.mark.parametrize("solve", [solvers.cg, solvers.bicgstab, solvers.gmres])
def test_too_few_iterations_give_a_warning(solve):
    A, b = _system(80, "positive")
    with pytest.warns(ConvergenceWarning, match="should be at most 1.0e-10"):
        solve(lambda v: A @ v, b, tol=1e-10, maxiter=2)


def test_a_singular_system_gives_a_warning():
    A = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    with pytest.warns(ConvergenceWarning):
        solvers.gmres(lambda v: A @ v, torch.ones(2, dtype=torch.float64))


def test_newton_and_fixed_point():
    a = torch.tensor([2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(solvers.newton(lambda x: x**2 - a, torch.ones_like(a)), a.sqrt())
    x = solvers.fixed_point(lambda x: (x + a / x) / 2, torch.ones_like(a))
    torch.testing.assert_close(x, a.sqrt())
    torch.testing.assert_close(
        tl.jacrev(lambda a: solvers.newton(lambda x: x**2 - a, torch.ones_like(a)))(a),
        torch.diag(0.5 / a.sqrt()),
    )


def test_newton_of_many_unknowns_needs_no_matrix():
    n = 300
    a = torch.linspace(1, 2, n, dtype=torch.float64)

    def f(x):
        return x**3 + x + 0.3 * x.roll(1) - a

    x = solvers.newton(f, torch.zeros(n, dtype=torch.float64))
    assert f(x).abs().max() < 1e-10


def test_a_diverging_iteration_gives_a_warning():
    with pytest.warns(ConvergenceWarning, match="fixed_point did not converge"):
        solvers.fixed_point(lambda x: 2 * x + 1, torch.ones(2), maxiter=20)
    with pytest.warns(ConvergenceWarning, match="newton did not converge"):
        solvers.newton(lambda x: x**2 + 1, torch.tensor(0.7), maxiter=5)


def test_what_has_no_tensors_is_refused():
    with pytest.raises(NotTensorError, match="b has no tensors"):
        solvers.cg(lambda x: x, [])


LINEAR = [solvers.cg, solvers.bicgstab, solvers.gmres]
DIVERGING = [
    (torch.float32, lambda z: 2 * z + 1),
    (torch.float32, lambda z: 1.1 * z + 1),
    (torch.float32, lambda z: -2 * z + 1),
    (torch.float64, lambda z: 10 * z + 1),
    (torch.float64, lambda z: z**2 + 1),
    (torch.float16, lambda z: 3 * z),
]


@pytest.mark.parametrize(("dtype", "f"), DIVERGING)
def test_an_iteration_that_overflows_did_not_converge(dtype, f):
    with pytest.warns(ConvergenceWarning, match="fixed_point did not converge"):
        x = solvers.fixed_point(f, torch.ones(2, dtype=dtype))
    assert not x.isfinite().any()


def test_newton_warns_where_it_meets_a_singular_jacobian():
    def f(a):
        return solvers.newton(lambda x: x**2 - a, torch.tensor([0.0]))

    with pytest.warns(ConvergenceWarning, match="newton did not converge"):
        assert f(torch.tensor(2.0)).isnan().all()

    def of_start(x):
        return solvers.newton(torch.atan, x)

    with pytest.warns(ConvergenceWarning, match="for 1 of 2 samples"):
        x = tl.vmap(of_start)(torch.tensor([0.5, 2.0]))
    assert x[0].abs() < 1e-6 and x[1].isnan()


@pytest.mark.parametrize("solve", LINEAR)
@pytest.mark.parametrize(
    ("size", "of_matrix"),
    [
        *((size, 1.0) for size in (1e-35, 1e-25, 1e25, 1e35)),
        (1e-25, 1e-25),
        (1e25, 1e25),
        (1.0, 1e-25),
    ],
)
def test_right_hand_sides_and_matrices_of_any_size(solve, size, of_matrix):
    A, b = _system(20, "positive", torch.float32)
    x = solve(lambda v: of_matrix * (A @ v), size * b)
    right = torch.linalg.solve(A.double(), b.double())
    torch.testing.assert_close(x.double() / size * of_matrix, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("solve", LINEAR)
def test_what_is_not_finite_did_not_converge(solve):
    with pytest.warns(ConvergenceWarning):
        solve(lambda v: 2 * v, torch.tensor([torch.inf, 1.0]))


@pytest.mark.parametrize("solve", LINEAR)
def test_an_absolute_tolerance_is_one_for_the_system_as_it_is(solve):
    A, b = _system(80, "positive")
    for size in (1.0, 1e-3):
        x = solve(lambda v: A @ v, size * b, tol=0.0, atol=1e-5)
        residual = (A @ x - size * b).norm()
        assert 1e-9 < residual <= 1e-5


@pytest.mark.parametrize("scale", [1e-36, 1e-24, 1e20, 1e36])
def test_cotangents_of_any_size(scale):
    def loss(a):
        x = tl.custom_root(lambda x: x + 0.1 * x.roll(1) - a, torch.zeros_like(a))
        return scale * x.sum()

    a = torch.ones(200)
    right = torch.full_like(a, scale / 1.1)
    torch.testing.assert_close(tl.grad(loss)(a) / scale, right / scale)
    torch.testing.assert_close(tl.vmap(tl.grad(loss))(a[None])[0] / scale, right / scale)


@pytest.mark.sweep
def test_tiny_cotangents_of_a_compiled_function():
    def loss(b):
        return 1e-24 * solvers.cg(lambda v: 2 * v, b).sum()

    compiled = tl.compile(tl.grad(loss), backend="replay")
    torch.testing.assert_close(compiled(torch.ones(3)) / 1e-24, torch.full((3,), 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    start = torch.full((4,), 200.0, dtype=dtype)
    b = torch.full((4,), 300.0, dtype=dtype)
    root = solvers.newton(lambda x: (x / 300) * (x / 300) - 1, start)
    torch.testing.assert_close(root, b)
    for solve in [*LINEAR, solvers.dense]:
        torch.testing.assert_close(solve(lambda v: 2 * v, b), b / 2)
    x = solvers.fixed_point(lambda z: 0.5 * z + 200, torch.zeros(4, dtype=dtype))
    torch.testing.assert_close(x, torch.full_like(x, 400), rtol=4 * torch.finfo(dtype).eps, atol=0)
