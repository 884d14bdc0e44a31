"""What is the same in each iteration of a while_loop is computed once, before it."""

import pytest
import torch
from torch.testing import assert_close

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same
from torchlayers.implicit import solvers


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def body_of(graph, number: int = 0):  # type: ignore[no-untyped-def]
    return graph.get_submodule(f"while_loop_body_graph_{number}")


def loop(step, x, *others):  # type: ignore[no-untyped-def]
    """Three steps of x = step(x, *others)."""

    def body(carry):  # type: ignore[no-untyped-def]
        i, x = carry
        return i + 1, step(x, *others)

    return tl.while_loop(lambda carry: carry[0] < 3, body, (torch.tensor(0), x))[1]


def test_a_product_of_captured_tensors():
    graph = same(lambda x, a, b: loop(lambda x, a, b: x + (a @ b).tanh(), x, a, b), *three())
    assert "mm" in operators(graph)
    assert "mm" not in operators(body_of(graph))
    assert "tanh" not in operators(body_of(graph))


def three():  # type: ignore[no-untyped-def]
    return numbers(3, 3), numbers(3, 4), numbers(4, 3)


def test_what_depends_on_the_carry_stays():
    graph = same(lambda x, a: loop(lambda x, a: (x @ a).tanh(), x, a), *three()[:1], numbers(3, 3))
    assert operators(body_of(graph)).count("mm") == 1


def test_views_alone_stay():
    graph = same(lambda x, a: loop(lambda x, a: x @ a.T, x, a), numbers(3, 3), numbers(3, 3))
    assert "mm" not in operators(graph)


@pytest.mark.parametrize("start", [0, 3])
def test_a_loop_without_iterations(start):
    def func(i, x, a):  # type: ignore[no-untyped-def]
        def body(carry):  # type: ignore[no-untyped-def]
            i, x = carry
            return i + 1, x + (a @ a).exp()

        return tl.while_loop(lambda carry: carry[0] < 3, body, (i, x))[1]

    same(func, torch.tensor(start), numbers(3, 3), numbers(3, 3))


def test_what_may_raise_an_error_stays():
    graph = same(
        lambda x, a: loop(lambda x, a: x + torch.linalg.inv(a @ a), x, a),
        numbers(3, 3),
        numbers(3, 3),
    )
    assert "mm" in operators(graph)
    assert any("inv" in name for name in operators(body_of(graph)))


def test_random_numbers_stay():
    same(
        lambda x, a: loop(lambda x, a: x + torch.rand_like(a) * a.exp(), x, a),
        numbers(3, 3),
        numbers(3, 3),
    )


@pytest.mark.sweep
def test_a_solver_shares_the_forward_values():
    weight, x = numbers(4, 4) / 4, numbers(2, 4)

    def layer(weight, x):  # type: ignore[no-untyped-def]
        return tl.custom_fixed_point(
            lambda z: torch.tanh(z @ weight + x),
            torch.zeros_like(x),
            lambda f, z: solvers.fixed_point(f, z, tol=1e-9),
            lambda g, y: solvers.bicgstab(g, y, tol=1e-9),
        )

    gradient = tl.grad(lambda *args: layer(*args).square().sum(), (0, 1))
    graph = same(lambda *args: [*gradient(*args)], weight, x, exact=False)
    assert "tanh" not in operators(body_of(graph, 1))
    assert operators(graph).count("tanh") == 1


def test_loops_in_loops():
    def step(x, a):  # type: ignore[no-untyped-def]
        return loop(lambda x, a: x * (a + 1).exp(), x, a)

    graph = same(lambda x, a: loop(step, x, a * 2), numbers(3), numbers(3), exact=False)
    assert "exp" not in operators(body_of(body_of(graph)))


@pytest.mark.sweep
def test_compiled_loops():

    def func(x, a):  # type: ignore[no-untyped-def]
        return loop(lambda x, a: (x @ a).tanh() + (a @ a).exp(), x, a)

    compiled = tl.compile(func, wait=True)
    x, a = numbers(3, 3), numbers(3, 3)
    for _ in range(2):
        assert_close(compiled(x, a), func(x, a))
    assert_close(compiled(x + 1, a), func(x + 1, a))


IN_PLACE = {
    "sizes": lambda x, a: x + (a @ a).unsqueeze(0).squeeze_(0),
    "values": lambda x, a: x + (a @ a).mul_(2),
    "a view": lambda x, a: x + _filled(a @ a),
    "with the carry": lambda x, a: (a @ a).mul_(x),
    "all samples": lambda x, a: torch.mv(a, torch.mv(a, x[0])).unsqueeze_(0) + x,
}


def _filled(y):  # type: ignore[no-untyped-def]
    y[0].add_(1)
    return y


@pytest.mark.sweep
@pytest.mark.parametrize("step", IN_PLACE.values(), ids=IN_PLACE)
@pytest.mark.parametrize("nest", ["plain", "jacrev", "vmap"])
def test_what_an_iteration_writes_to_stays(step, nest):  # type: ignore[no-untyped-def]
    def func(x, a):  # type: ignore[no-untyped-def]
        return loop(step, x, a)

    x, a = numbers(3, 3), numbers(3, 3) / 4
    if nest == "jacrev":
        func = tl.jacrev(func)
    if nest == "vmap":
        func, x = tl.vmap(func, in_dims=(0, None)), torch.stack([x, -x])
    assert_close(tl.compile(func, backend="replay")(x, a), func(x, a))
