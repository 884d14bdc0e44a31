"""Entries of sparse derivatives are computed without the products that they are read from."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import torchlayers as tl
from tests.compiler.passes.simplified import Checked, operators
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.entries.captured_constants import simplify_captured

N = 24
WEIGHTS = torch.linspace(1, 2, N, dtype=torch.float64)


def x(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, generator=generator, dtype=torch.float64)


def diffusion(u: Tensor) -> Tensor:
    zero = u[:1] * 0
    return torch.cat([zero, u[:-1]]) - 2 * u + torch.cat([u[1:], zero]) + u * torch.exp(-u * u)


def burgers(u: Tensor) -> Tensor:
    return u * (u.roll(1) - u.roll(-1)) / (1 + u.roll(1) ** 2)


def upwind(u: Tensor) -> Tensor:
    flux = torch.where(u[1:] + u[:-1] > 0, u[:-1], u[1:]) ** 2
    return F.pad(flux, (0, 1)) - F.pad(flux, (1, 0))


def activations(u: Tensor) -> Tensor:
    return torch.relu(u.roll(1) - u) + torch.tanh(u.flip(0)) + torch.sigmoid(u) * WEIGHTS


def grid(u: Tensor) -> Tensor:
    v = u.reshape(4, 6)
    return ((v[1:, 1:] - v[:-1, :-1]).sin() * v[1:, :-1]).T.flatten()


def sums(u: Tensor) -> Tensor:
    return torch.cat([u[:4] * u.reshape(4, 6)[:, 0], torch.stack([u[0] * u[3], u[5]])])


def arrow(u: Tensor) -> Tensor:
    return torch.cat([(u[0] + (u**2).sum())[None], u[1:] * u[0] + u[1:] ** 2])


def energy(u: Tensor) -> Tensor:
    return ((u[1:] - u[:-1]) ** 2).sum() + (u**4).sum()


def bonds(u: Tensor) -> Tensor:
    return ((u[1:] - u[:-1]) ** 2 / (1 + u[1:] ** 2)).sum() + torch.cos(u[2:] - u[:-2]).sum()


JACOBIANS = (diffusion, burgers, upwind, activations, grid, sums)


def check(func, at):  # type: ignore[no-untyped-def]
    """The simplified graph computes the same, at other values too, and is returned."""
    captured, graph = simplify_captured(record(func, (at,)))
    for u in (at, at * 2):
        given = [u, *captured.captured]
        [expected] = captured.graph(*given)
        [actual] = Checked(graph).run(*given)
        assert_close(actual, expected)
        assert_close(actual, func(u))
    return graph


def batched(graph) -> list[str]:  # type: ignore[no-untyped-def]
    """The operators whose results have a dimension for the colours."""
    return [
        node.name
        for node in graph.graph.nodes
        if node.op == "call_function" and node.meta["val"].dim() > 1
        and node.meta["val"].numel() > 2 * N
    ]  # fmt: skip


@pytest.mark.parametrize("transform", [tl.jacfwd, tl.jacrev])
@pytest.mark.parametrize("func", JACOBIANS)
def test_jacobians(func, transform):
    graph = check(transform(func, sparse=True, layout="values"), x())
    assert not batched(graph)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["star", "acyclic", "columns"])
@pytest.mark.parametrize("func", [energy, bonds])
def test_hessians(func, mode):
    coloring = tl.coloring(tl.sparsity(func, x(), of="hessian"), mode)
    graph = check(tl.hessian(func, sparse=coloring, layout="values"), x())
    assert not batched(graph) or (func, mode) == (bonds, "acyclic")  # too many terms


def test_rows_and_columns():
    coloring = tl.coloring(tl.sparsity(arrow, x()), "bidirectional")
    check(tl.jacfwd(arrow, sparse=coloring, layout="values"), x())


def test_a_linear_function_is_a_constant():
    sparse = tl.jacfwd(lambda u: 3 * u[1:] - u[:-1], sparse=True, layout="values")
    graph = check(sparse, x())
    assert operators(graph) == ["clone"]
    compiled = tl.compile(sparse, backend="replay")
    compiled(x()).zero_()
    assert_close(compiled(x()), sparse(x()))


def test_a_stencil_writes_its_diagonal():
    graph = check(tl.jacfwd(diffusion, sparse=True, layout="values"), x())
    assert operators(graph)[-1] == "index_put"
    assert "cat" not in operators(graph)


def test_a_layer_in_between_is_not_followed():
    matrix = torch.eye(N, dtype=torch.float64) + torch.eye(N, dtype=torch.float64).roll(1, 0)
    sparse = tl.jacfwd(lambda u: matrix @ u.sin(), sparse=True, layout="values")
    assert "index_select" in operators(check(sparse, x()))


def test_infinities_stay_in_their_entries():
    def func(u: Tensor) -> Tensor:
        return F.pad(u.log(), (1, 0))[:-1] + 2 * u

    u = x().abs() + 1
    u[5] = 0.0
    sparse = tl.jacfwd(func, sparse=True, layout="values")
    pattern = tl.sparsity(func, u)
    captured, graph = simplify_captured(record(sparse, (u,)))
    [actual] = graph(u, *captured.captured)
    dense = tl.jacfwd(func)(u)[pattern.rows, pattern.cols]
    assert int(actual.isinf().sum()) == 1
    inside = dense.isfinite()
    assert_close(actual[inside], dense[inside])


def test_single_precision_and_leaves():
    def func(args):  # type: ignore[no-untyped-def]
        return {"a": args["u"].sin() * args["v"][1:], "b": args["v"].exp()}

    u = {"u": x()[:5].float(), "v": x(1)[:6].float()}
    sparse = tl.jacfwd(func, sparse=True, layout="values")
    compiled = tl.compile(sparse, backend="replay")
    assert_close(compiled(u), sparse(u))


def test_reverse_mode_of_the_compiled_function():
    sparse = tl.jacfwd(burgers, sparse=True, layout="values")
    compiled = tl.compile(sparse, backend="replay")
    u = x().requires_grad_()
    [actual] = torch.autograd.grad(compiled(u).sin().sum(), u)
    [expected] = torch.autograd.grad(sparse(u).sin().sum(), u)
    assert_close(actual, expected)


def test_constants_that_change_are_not_read():
    """A tensor that the user holds is no constant, whatever it is used for."""
    index = torch.tensor([0, 2])
    compiled = tl.compile(lambda u: (u * 2).index_select(0, index), backend="replay")
    u = x()
    assert_close(compiled(u), 2 * u[[0, 2]])
    index.fill_(1)
    assert_close(compiled(u), 2 * u[[1, 1]])


def test_without_the_values_of_constants_nothing_is_read():
    captured = record(tl.jacfwd(diffusion, sparse=True, layout="values"), (x(),))
    assert "index_select" in operators(simplify(captured.graph))
