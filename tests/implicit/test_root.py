"""custom_root and custom_fixed_point: what they see, what runs, and misuse."""

import functools
import warnings

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, DtypeError, NotTensorError, StructureError, TransformError
from torchlayers.implicit import ConvergenceWarning, solvers

torch_double = torch.float64


def number(x):
    return torch.tensor(x, dtype=torch_double)


class _Cell(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = torch.nn.Linear(size, size, dtype=torch_double)
        self.outer = torch.nn.Linear(2, size, dtype=torch_double)
        with torch.no_grad():
            self.inner.weight.mul_(0.4)

    def forward(self, z, x):
        return torch.tanh(self.inner(z) + self.outer(x))


def _unrolled(cell, x):
    z = torch.zeros(4, 3, dtype=torch_double)
    for _ in range(60):
        z = cell(z, x)
    return z


def _implicit(cell, x):
    return tl.custom_fixed_point(lambda z: cell(z, x), torch.zeros(4, 3, dtype=torch_double))


def _cell():
    torch.manual_seed(0)
    return _Cell(3), torch.randn(4, 2, dtype=torch_double)


def test_parameters_of_a_module_get_gradients():
    cell, x = _cell()
    expected = torch.autograd.grad(_unrolled(cell, x).square().sum(), [*cell.parameters()])
    _implicit(cell, x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in cell.parameters()], [*expected])


def test_parameters_are_differentiated_inside_transforms_too():
    cell, x = _cell()

    def penalty(solve):  # a gradient by x, differentiated with respect to the parameters
        return tl.grad(lambda x: solve(cell, x).square().sum())(x).square().sum()

    expected = torch.autograd.grad(penalty(_unrolled), [*cell.parameters()])
    torch.testing.assert_close(
        torch.autograd.grad(penalty(_implicit), [*cell.parameters()]), expected
    )


def test_functional_call_gives_gradients_per_sample():
    cell, x = _cell()
    parameters = {name: p.detach() for name, p in cell.named_parameters()}

    def loss(solve):
        def of(parameters, x):
            def run(z, x):
                return tl.functional_call(cell, parameters, (z, x))

            return solve(run, x.expand(4, 2)).square().sum()

        return of

    found = tl.vmap(tl.grad(loss(_implicit)), (None, 0))(parameters, x)
    expected = tl.vmap(tl.grad(loss(_unrolled)), (None, 0))(parameters, x)
    torch.testing.assert_close(found, expected)


def test_a_function_applied_to_a_captured_tensor_is_seen():
    class Double(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def f(a):
        return tl.custom_root(lambda x: x**3 - Double.apply(a), number(1.0))

    a = number(4.0).requires_grad_()
    f(a).backward()
    torch.testing.assert_close(a.grad, number(2 / 12))
    torch.testing.assert_close(tl.grad(f)(number(4.0)), number(2 / 12))


def test_inside_control_flow():
    def f(a):
        return tl.cond(
            a > 1,
            lambda a: tl.custom_root(lambda x: x**2 - a, number(1.0)),
            lambda a: tl.custom_fixed_point(lambda x: torch.cos(a * x), number(1.0)),
            a,
        )

    a = torch.tensor([0.5, 2.0, 4.0], dtype=torch_double)
    one_by_one = torch.stack([tl.grad(f)(each) for each in a])
    torch.testing.assert_close(tl.vmap(tl.grad(f))(a), one_by_one)
    torch.testing.assert_close(one_by_one[2], number(0.25))


def test_inside_loops():
    def by_scan(a):  # x' = sqrt(a + x), three times
        def step(x, _):
            x = tl.custom_root(lambda y: y**2 - a - x, x + 1)
            return x, x

        return tl.scan(step, number(1.0), torch.zeros(3))[0]

    def by_while(a):
        def body(carry):
            x, i = carry
            return tl.custom_root(lambda y: y**2 - a - x, x + 1), i + 1

        return tl.while_loop(lambda carry: carry[1] < 3, body, (number(1.0), 0))[0]

    def plain(a):
        x = number(1.0)
        for _ in range(3):
            x = (a + x).sqrt()
        return x

    a = torch.tensor([2.0, 5.0], dtype=torch_double)
    for f in (by_scan, by_while):
        torch.testing.assert_close(tl.vmap(tl.grad(f))(a), tl.vmap(tl.grad(plain))(a))


def test_variables_that_are_bound_again_keep_their_values():
    """NOTE [A function that runs again]."""

    def solved(a):
        x = number(1.0)
        for i in range(3):
            inner = lambda y: y**2 - i * x  # noqa: E731, B023
            x = tl.custom_root(lambda y: inner(y) - a - x * (1 - i), x + 1)  # noqa: B023
        return x

    def plain(a):
        x = number(1.0)
        for _ in range(3):
            x = (a + x).sqrt()
        return x

    torch.testing.assert_close(tl.grad(solved)(number(2.0)), tl.grad(plain)(number(2.0)))


def test_globals_that_are_bound_again_keep_their_values():
    program = """
x = a
for _ in range(3):
    x = tl.custom_root(lambda y: y**2 - a - x, x + 1)
    b = tl.custom_linear_solve(lambda y: a * x * y, x)
    b, b_again = 1 / a, b
"""
    a = number(2.0).requires_grad_()
    names = {"tl": tl, "a": a}
    exec(program, names)
    x = a
    for _ in range(3):
        x = (a + x).sqrt()
    torch.testing.assert_close(
        torch.autograd.grad(names["x"], a, retain_graph=True), torch.autograd.grad(x, a)
    )
    torch.testing.assert_close(
        torch.autograd.grad(names["b_again"], a), torch.autograd.grad(1 / a, a)
    )


def test_each_sample_stops_by_itself():
    trips = []

    def solve(f, x):
        def body(carry):
            return f(carry[0]), carry[0], carry[2] + 1

        start = x, x + 1, torch.zeros((), dtype=torch.int64)
        x, _, count = tl.while_loop(lambda c: (c[0] - c[1]).abs() > 1e-6, body, start)
        trips.append(count)
        return x, count

    def f(a):
        return tl.custom_fixed_point(lambda x: torch.cos(a * x), number(1.0), solve, has_aux=True)

    a = torch.tensor([0.1, 0.5, 1.0], dtype=torch_double)
    gradient, counts = tl.vmap(tl.grad(f, has_aux=True))(a)
    assert counts.tolist() == [f(each)[1].item() for each in a]
    assert len(set(counts.tolist())) == 3
    torch.testing.assert_close(gradient, torch.stack([tl.grad(f, has_aux=True)(x)[0] for x in a]))


def test_has_aux():
    def solve(f, x):
        return solvers.newton(f, x), {"trips": 3, "start": x}

    x, aux = tl.custom_root(lambda x: x**2 - 2, number(1.0), solve, has_aux=True)
    torch.testing.assert_close(x, number(2.0).sqrt())
    assert aux == {"trips": 3, "start": number(1.0)}


def test_complex_roots():
    def f(a):
        z = torch.tensor(1j, dtype=torch.complex128)
        return tl.custom_root(lambda z: z**2 + torch.complex(a, 0.5 * a), z)

    def plain(a):
        return torch.sqrt(-torch.complex(a, 0.5 * a))

    def size(f):
        return lambda a: (f(a) * (1 + 2j)).real

    a = number(1.3)
    sign = (f(a) / plain(a)).real.round()
    torch.testing.assert_close(tl.grad(size(f))(a), sign * tl.grad(size(plain))(a))
    torch.testing.assert_close(tl.jvp(f, (a,), (a,))[1], sign * tl.jvp(plain, (a,), (a,))[1])


def test_the_initial_guess_is_not_differentiated():
    def f(start):
        return tl.custom_root(lambda x: x**2 - 2, start)

    assert tl.grad(f)(number(1.0)) == 0


def test_no_grad_and_detach_cut_the_graph():
    a = number(2.0).requires_grad_()
    with torch.no_grad():
        x = tl.custom_root(lambda x: x**2 - a, number(1.0))
    assert not x.requires_grad
    assert tl.custom_root(lambda x: x**2 - a, number(1.0)).requires_grad
    b = a.detach()
    assert not tl.custom_root(lambda x: x**2 - b, number(1.0)).requires_grad


@pytest.mark.sweep
def test_check_grads():
    from torchlayers.testing import check_grads

    def f(a):
        return tl.custom_root(lambda x: x**3 + x - a, torch.zeros_like(a))

    check_grads(f, (torch.tensor([0.3, 1.5], dtype=torch_double),), order=2)


def test_autocast_is_that_of_the_call():
    w = torch.eye(4).mul(0.5).requires_grad_()
    seen = set()

    def f(x):
        y = w @ x
        seen.add(y.dtype)
        return torch.tanh(y.float() + 1)

    with torch.autocast("cpu", torch.bfloat16):
        x = tl.custom_fixed_point(f, torch.zeros(4), tangent_solve=solvers.gmres)
    x.sum().backward()
    assert seen == {torch.bfloat16}


def test_a_tangent_solve_that_does_not_converge_says_so():
    def f(a, tangent_solve):
        A = torch.diag(torch.linspace(1, 1000, 40, dtype=torch_double))
        return tl.custom_root(
            lambda x: A @ x - a, torch.zeros(40, dtype=torch_double), None, tangent_solve
        ).sum()

    few_steps = functools.partial(solvers.cg, maxiter=3)

    def wrong(g, y):
        return 0.5 * y

    for solve, text in ((few_steps, "cg did not converge"), (wrong, "the linear solver did not")):
        with pytest.warns(ConvergenceWarning, match=text):
            tl.grad(f)(torch.ones(40, dtype=torch_double), solve)
    with pytest.warns(ConvergenceWarning, match="for 2 of 2 samples"):
        tl.vmap(tl.grad(f), (0, None))(torch.ones(2, 40, dtype=torch_double), wrong)


def test_a_tangent_solve_that_ignores_the_transpose_says_so():
    A = torch.tensor([[1.0, 5.0], [0.0, 2.0]], dtype=torch_double)

    def f(a):
        return tl.custom_root(
            lambda x: A @ x - a,
            torch.zeros(2, dtype=torch_double),
            tangent_solve=lambda g, y: torch.linalg.solve(A, y),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(tl.jacfwd(f)(torch.ones(2, dtype=torch_double)), A.inverse())
    with pytest.warns(ConvergenceWarning, match="transposed"):
        tl.jacrev(f)(torch.ones(2, dtype=torch_double))


def test_a_tensor_that_is_captured_only_later_is_an_error():
    w = number(2.0).requires_grad_()
    calls = []

    def f(x):
        calls.append(x)
        return x**2 - (w if len(calls) > 1 else 2.0)

    x = tl.custom_root(f, number(1.0), lambda f, x: number(2.0).sqrt())
    assert not x.requires_grad
    calls.clear()

    def also(x):
        calls.append(x)
        return x**2 - a * (w if len(calls) > 1 else 2.0)

    a = number(1.0).requires_grad_()
    x = tl.custom_root(also, number(1.0), lambda f, x: number(2.0).sqrt())
    with pytest.raises(TransformError, match="Its gradient would be lost"):
        x.backward()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tl.custom_root(3, number(1.0)), CallError, "f must be a function"),
        (lambda: tl.custom_root(torch.sin, 1.0), NotTensorError, "initial_guess must be a tensor"),
        (lambda: tl.custom_root(torch.sin, torch.tensor(1)), DtypeError, "floating-point"),
        (lambda: tl.custom_root(torch.sin, {}), NotTensorError, "has no tensors"),
        (
            lambda: tl.custom_root(lambda x: x.expand(2), number(1.0)),
            StructureError,
            "f must return a pytree like initial_guess",
        ),
        (
            lambda: tl.custom_root(torch.sin, number(1.0), lambda f, x: (x, 3)),
            StructureError,
            "solve must return a pytree like initial_guess",
        ),
        (
            lambda: tl.custom_root(torch.sin, number(1.0), lambda f, x: x, has_aux=True),
            TransformError,
            "has_aux",
        ),
        (
            lambda: tl.custom_fixed_point(torch.sin, solve=lambda f, x: x),
            CallError,
            "As a decorator",
        ),
        (
            lambda: tl.custom_fixed_point(torch.cos, number(1.0), tangent_solve=3),
            CallError,
            "tangent_solve must be a function",
        ),
    ],
)
def test_misuse(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert tl.current_stack() == ()


def test_a_solver_that_reads_values_under_vmap_says_what_to_do():
    def solve(f, x):
        while f(x).abs().item() > 1e-6:
            x = x - f(x) / 2
        return x

    def f(a):
        return tl.custom_root(lambda x: x - a, number(0.0), solve)

    torch.testing.assert_close(tl.grad(f)(number(3.0)), number(1.0))
    with pytest.raises(RuntimeError, match="while_loop"):
        tl.vmap(f)(torch.ones(2, dtype=torch_double))
    with pytest.warns(UserWarning, match="one sample at a time"):
        found = tl.vmap(f, fallback="loop")(torch.ones(2, dtype=torch_double))
    torch.testing.assert_close(found, torch.ones_like(found), rtol=1e-5, atol=0)


def test_a_solver_of_scipy_under_plain_autograd():
    optimize = pytest.importorskip("scipy.optimize")

    def solve(f, x):
        result = optimize.root(lambda x: f(torch.from_numpy(x)).numpy(), x.numpy(), tol=1e-13)
        return torch.from_numpy(result.x)

    def f(a, solve=None):
        return tl.custom_root(lambda x: x**3 + x.sum() - a, torch.ones(2).double(), solve).sum()

    a = torch.tensor([2.0, 3.0], dtype=torch_double, requires_grad=True)
    f(a, solve).backward()
    torch.testing.assert_close(a.grad, tl.grad(f)(a.detach()))
