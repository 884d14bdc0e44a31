"""minimize, least_squares, find_root and find_fixed_point, against plain operators."""

import pytest
import torch

import torchlayers as tl
from tests.implicit.optima import PROBLEMS, A
from torchlayers.errors import CallError, CheckError, NotScalarError, StructureError
from torchlayers.implicit import (
    ConvergenceWarning,
    find_fixed_point,
    find_root,
    least_squares,
    minimize,
)

each_problem = pytest.mark.parametrize("name", PROBLEMS)
BATCH = torch.stack([A, 3 * A, -A.flip(0), 0 * A])
NESTS = {
    "grad": lambda f: tl.grad(lambda a: f(a).pow(2).sum()),
    "jvp": lambda f: lambda a: tl.jvp(f, (a,), (a.cos(),))[1],
    "jvp_grad": lambda f: (
        lambda a: tl.jvp(tl.grad(lambda a: f(a).pow(3).sum()), (a,), (a.cos(),))[1]
    ),
    "grad_grad": lambda f: tl.grad(lambda a: tl.grad(lambda a: f(a).pow(3).sum())(a).sin().sum()),
    "jacfwd_jvp": lambda f: tl.jacfwd(lambda a: tl.jvp(f, (a,), (a.cos(),))[1]),
}


def value_of(f):
    return lambda a: f(a).value


@each_problem
def test_solutions(name):
    f, plain = PROBLEMS[name]
    solution = f(A)
    assert solution.converged
    assert 0 < solution.iterations < 100
    assert solution.residual < 1.5e-8
    torch.testing.assert_close(solution.value, plain(A), rtol=1e-7, atol=1e-8)


@each_problem
def test_samples_have_their_own_iterations(name):
    f, plain = PROBLEMS[name]
    batched = tl.vmap(f)(BATCH)
    alone = [f(a) for a in BATCH]
    assert batched.converged.all()
    if name != "minimum_cg":  # whose line searches rounding changes
        assert batched.iterations.tolist() == [solution.iterations.item() for solution in alone]
    if name != "bracketed_bisection":
        assert len({*batched.iterations.tolist()}) > 1
    values = torch.stack([plain(a) for a in BATCH])
    torch.testing.assert_close(batched.value, values, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("nest", NESTS)
@each_problem
def test_derivatives(name, nest):
    f, plain = PROBLEMS[name]
    result, expected = (NESTS[nest](each)(A) for each in (value_of(f), plain))
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.sweep
@each_problem
def test_derivatives_of_a_batch(name):
    f, plain = PROBLEMS[name]
    result = tl.vmap(NESTS["grad"](value_of(f)))(BATCH)
    expected = torch.stack([NESTS["grad"](plain)(a) for a in BATCH])
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.sweep
@each_problem
def test_captured_solvers_are_loops(name):
    f = PROBLEMS[name][0]

    def solved(a):
        return tl.grad_and_value(lambda a: f(a).value.pow(2).sum())(a)[0], tl.vmap(f)(BATCH * a)

    captured = tl.compile(solved, backend="replay")
    for a in (torch.ones_like(A), A):
        gradient, batch = captured(a)
        direct, batch_of_direct = solved(a)
        torch.testing.assert_close(gradient, direct, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(batch.value, batch_of_direct.value, rtol=1e-6, atol=1e-7)
        assert batch.converged.all()


MINIMIZERS = ["bfgs", "lbfgs", "cg"]
SQUARES = ["lm", "dogleg", "gauss_newton"]


def rosenbrock(x):
    return 100 * (x[1:] - x[:-1] ** 2).square().sum() + (1 - x[:-1]).square().sum()


def of_rosenbrock(x):
    return 10 * (x[1:] - x[:-1] ** 2), 1 - x[:-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", MINIMIZERS)
def test_a_curved_valley(method, dtype):
    start = torch.tensor([-1.2, 1.0, 0.5], dtype=dtype)
    solution = minimize(rosenbrock, start, method)
    assert solution.converged
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    assert (solution.value - 1).abs().max() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", SQUARES)
def test_a_residual_of_zero(method, dtype):
    solution = least_squares(of_rosenbrock, torch.tensor([-1.2, 1.0, 0.5], dtype=dtype), method)
    assert solution.converged
    assert solution.iterations < 60
    rtol = 1e-7 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(solution.value, torch.ones(3, dtype=dtype), rtol=rtol, atol=0)


@pytest.mark.parametrize("method", MINIMIZERS)
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_minima_of_functions_of_any_size(method, size):
    """The sizes of f and of its gradient do not matter, in single precision too."""
    a = torch.tensor([0.5, -2.0, 3.0])

    def f(x):
        return size * ((x - a) * torch.tensor([1.0, 5.0, 20.0]) * (x - a)).sum()

    solution = minimize(f, torch.zeros(3), method)
    assert solution.converged
    torch.testing.assert_close(solution.value, a, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", SQUARES)
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_residuals_and_unknowns_of_any_size(method, size):
    t = torch.linspace(0, 1, 9)
    values = 2 * torch.exp(-1.5 * t) + 0.01 * torch.sin(20 * t)

    def of_residuals(x):
        return size * (x[0] * torch.exp(-x[1] * t) - values)

    def of_unknowns(x):
        return (x[0] / size) * torch.exp(-(x[1] / size) * t) - values

    solution = least_squares(of_residuals, torch.ones(2), method)
    assert solution.converged
    scaled = least_squares(of_unknowns, torch.full((2,), size), method)
    assert scaled.converged
    torch.testing.assert_close(scaled.value / size, solution.value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", MINIMIZERS)
@pytest.mark.parametrize("noise", [0.0, 1e-17, 1e-9])
def test_a_start_at_the_minimum(method, noise):
    a = torch.tensor([1.0, 2.0], dtype=torch.float64)
    solution = minimize(lambda x: (x - a).square().sum() + 7 * (x[0] - 1) ** 4, a + noise, method)
    assert solution.converged
    assert solution.iterations <= 12  # shorter and shorter ones
    torch.testing.assert_close(solution.value, a)


@pytest.mark.parametrize("method", SQUARES)
def test_a_start_at_the_least_squares(method):
    start = torch.ones(3, dtype=torch.float64)
    solution = least_squares(of_rosenbrock, start, method)
    assert solution.converged and solution.iterations == 0
    assert torch.equal(solution.value, start)


@pytest.mark.parametrize("method", SQUARES)
def test_a_jacobian_without_full_rank(method):
    """The sum of two unknowns is determined, their difference stays what it was."""
    values = torch.tensor([3.0, 3.5, 2.5], dtype=torch.float64)

    def f(x):
        total = x[0] + x[1]
        return total + 0.1 * total**2 - values

    solution = least_squares(f, torch.tensor([0.2, 0.0], dtype=torch.float64), method)
    assert solution.converged
    total = solution.value.sum()
    torch.testing.assert_close(total + 0.1 * total**2, values.mean())
    torch.testing.assert_close(solution.value[0] - solution.value[1], values.new_tensor(0.2))


@pytest.mark.parametrize("method", SQUARES)
def test_fewer_residuals_than_unknowns(method):
    def f(x):
        return x.square().sum() + x[0] - 3

    start = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    solution = least_squares(lambda x: f(x)[None], start, method)
    assert solution.converged
    assert f(solution.value).abs() < 1e-7


def test_where_the_function_is_not_finite_a_step_is_too_long():
    def f(x):
        return x.sum() - torch.log(x).sum()

    start = torch.tensor([0.01, 5.0], dtype=torch.float64)
    for method in MINIMIZERS:
        torch.testing.assert_close(minimize(f, start, method).value, torch.ones_like(start))
    for method in ("lm", "dogleg"):
        solution = least_squares(lambda x: torch.log(x), start, method)
        torch.testing.assert_close(solution.value, torch.ones_like(start))


def _run(solve, *args):
    return lambda x, **options: solve(f_of, x, *args, **options)


def _between(method):
    def solve(x, **options):
        bracket = -0.5 + 0 * x[0], 9 + 0 * x[0]
        return find_root(lambda t: f_of(t + x[0]), None, method, bracket=bracket, **options)

    return solve


def _lowest(f, x, method, **options):
    return minimize(lambda x: f(x).square().sum(), x, method, **options)


def _fixed_point(f, x, method, **options):
    return find_fixed_point(lambda x: x - 0.1 * f(x), x, method, **options)


RUNS = {
    f"{solve.__name__} {method}": _run(solve, method)
    for solve, methods in [
        (_lowest, MINIMIZERS),
        (least_squares, SQUARES),
        (find_root, ["newton", "broyden", "lm", "dogleg"]),
        (_fixed_point, ["anderson", "iteration", "broyden", "newton"]),
    ]
    for method in methods
} | {"brent": _between("brent"), "bisection": _between("bisection")}


def f_of(x):
    """It has a root at 1, and is nan below zero."""
    return x.sqrt() - 1 + 0.1 * (x - 1) ** 2


each_run = pytest.mark.parametrize("name", RUNS)


@each_run
def test_a_sample_that_fails_leaves_the_others_alone(name):
    starts = torch.tensor([[1.3], [-2.0], [0.9]], dtype=torch.float64)
    with pytest.warns(ConvergenceWarning, match="did not converge for 1 of 3 samples"):
        batched = tl.vmap(RUNS[name])(starts)
    assert batched.converged.tolist() == [True, False, True]
    for i in (0, 2):
        alone = RUNS[name](starts[i])
        torch.testing.assert_close(batched.value[i], alone.value, rtol=1e-9, atol=1e-9)


@each_run
def test_throw_raises_also_where_compiled(name):
    start = torch.tensor([[1.3], [0.9]], dtype=torch.float64)
    failing = start * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    f = tl.vmap(lambda x: RUNS[name](x, throw=True))
    assert f(start).converged.all()
    for run in (f, tl.compile(f, backend="replay")):
        with pytest.raises(CheckError, match=r"1 of 2 samples failed: sample 1: .* not converge"):
            run(failing)


def test_too_few_iterations_give_a_warning():
    start = torch.full((4,), -1.0, dtype=torch.float64)
    with pytest.warns(ConvergenceWarning, match="minimize did not converge"):
        assert not minimize(rosenbrock, start, maxiter=3).converged
    with pytest.warns(ConvergenceWarning, match="should be at most 1.0e-12"):
        least_squares(of_rosenbrock, start, maxiter=3, tol=1e-12)


def test_a_function_without_a_minimum_gives_a_warning():
    for method in MINIMIZERS:
        with pytest.warns(ConvergenceWarning, match="minimize did not converge"):
            minimize(lambda x: x.sum(), torch.ones(2), method)


def test_unknowns_in_trees_and_complex_ones():
    b = torch.tensor([1 + 2j, 0.5j], dtype=torch.complex128)

    def f(x):
        return {"z": x["z"] * (2 + 1j) - b, "r": (x["r"] ** 2 - x["z"][0].real - 3,)}

    start = {"z": torch.zeros_like(b), "r": torch.ones((), dtype=torch.float64)}
    z = b / (2 + 1j)
    for method in SQUARES:
        value = least_squares(f, start, method).value
        torch.testing.assert_close(value["z"], z)
        torch.testing.assert_close(value["r"], (3 + z[0].real).sqrt())

    def energy(x):
        residuals = f(x)
        return residuals["z"].abs().square().sum() + residuals["r"][0] ** 2

    for method in MINIMIZERS:
        value = minimize(energy, start, method).value
        torch.testing.assert_close(value["z"], z)

    def solved(b):
        def squares(z):
            difference = z * (2 + 1j) - b
            return difference.real.square().sum() + difference.imag.square().sum()

        return minimize(squares, 0 * b).value

    _, pull = tl.vjp(solved, b)
    (gradient,) = pull(torch.ones_like(b))
    torch.testing.assert_close(gradient, (1 / (2 - 1j)) * torch.ones_like(b))


def test_roots_of_many_unknowns():
    n = 300
    a = torch.linspace(1, 2, n, dtype=torch.float64)

    def f(x):
        return x + 0.1 * x**3 + 0.3 * x.roll(1) - a

    for method in ("newton", "broyden", "lm"):
        solution = find_root(f, torch.zeros(n, dtype=torch.float64), method)
        assert solution.converged
        assert f(solution.value).abs().max() < 1e-8


def test_brackets():
    def f(x):
        return (x - 0.3) * (x * x + 1)

    low, high = torch.tensor(-50.0).double(), torch.tensor(80.0).double()
    for method, most in (("brent", 25), ("bisection", 60)):
        for bracket in [(low, high), (high, low), (low, low * 0 + 0.3), (low * 0 + 0.3, high)]:
            solution = find_root(f, None, method, bracket=bracket)
            assert solution.converged and solution.iterations <= most
            assert (solution.value - 0.3).abs() < 1e-11
        with pytest.warns(ConvergenceWarning, match="different signs at both ends"):
            assert not find_root(f, None, method, bracket=(high, high + 1)).converged


def test_brent_takes_few_values():
    """Brent's own examples: a triple root, and a function that is flat but for one end."""
    low, high = torch.tensor(-1.0).double(), torch.tensor(4.0).double()
    solution = find_root(lambda x: (x - 1) ** 3, bracket=(low, high))
    assert solution.converged and solution.iterations < 120
    solution = find_root(lambda x: x**19, bracket=(low, high))
    assert solution.converged
    solution = find_root(lambda x: x.exp() - 2, bracket=(low, high))
    assert solution.iterations < 12
    torch.testing.assert_close(solution.value, torch.tensor(2.0).double().log())


ERRORS = [
    (
        CallError,
        "method must be one of 'bfgs', 'lbfgs', 'cg'",
        lambda x: minimize(torch.sum, x, "x"),
    ),
    (CallError, "method must be one of 'lm', 'dogleg'", lambda x: least_squares(torch.sin, x, "")),
    (NotScalarError, "must return a real tensor without", lambda x: minimize(torch.sin, x)),
    (NotScalarError, "returned float", lambda x: minimize(lambda x: 1.0, x)),
    (StructureError, "must return a tensor or a pytree", lambda x: least_squares(lambda x: 3, x)),
    (StructureError, "f must return a pytree like x0", lambda x: find_root(torch.sum, x)),
    (CallError, "needs bracket=", lambda x: find_root(torch.sin, x, "brent")),
    (CallError, "needs x0, or bracket", lambda x: find_root(torch.sin)),
    (CallError, "either x0 or a bracket", lambda x: find_root(torch.sin, x, bracket=(x, x))),
    (CallError, "two real tensors", lambda x: find_root(torch.sin, bracket=(x, x))),
    (
        CallError,
        "method must be one of 'brent'",
        lambda x: find_root(torch.sin, None, "lm", bracket=(x, x)),
    ),
    (CallError, "method must be one of 'anderson'", lambda x: find_fixed_point(torch.sin, x, "lm")),
]


@pytest.mark.parametrize(("error", "message", "call"), ERRORS)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call(torch.ones(2))
