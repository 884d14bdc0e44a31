"""torch's own control-flow operators inside our transforms."""

import math

import pytest
import torch
from torch._higher_order_ops import scan

import torchlayers as tl
from tests.control_flow.programs import SCALE
from tests.control_flow.torch_programs import TORCH_PROGRAMS
from tests.support.nests import NESTS, as_alone, batch

pytestmark = pytest.mark.skipif(
    not hasattr(torch._higher_order_ops.utils, "_hop_compile_and_call"),
    reason="this torch compiles its control flow by another function",
)


@pytest.mark.parametrize("nest", NESTS, ids="-".join)
@pytest.mark.parametrize("program", TORCH_PROGRAMS, ids=repr)
def test_batched_program_equals_its_unrolled_version(program, nest):
    as_alone(program.ours, program.plain, nest, batch(nest, 3))


@pytest.mark.parametrize("program", TORCH_PROGRAMS, ids=repr)
def test_gradients_equal_finite_differences(program):
    torch.manual_seed(2)
    xs = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(tl.vmap(program.ours), xs)


@pytest.mark.parametrize("program", TORCH_PROGRAMS, ids=repr)
def test_layers_of_torch_func_may_be_around_and_inside(program):
    xs = batch(("vmap",), 3)

    def alone(x):
        return tl.grad(lambda x: program.plain(x).square().sum())(x)

    def slope(library):
        return lambda x: library.grad(lambda x: program.ours(x).square().sum())(x)

    expected = torch.stack([alone(x) for x in xs.unbind()])
    torch.testing.assert_close(torch.func.vmap(slope(tl))(xs), expected)
    torch.testing.assert_close(tl.vmap(slope(torch.func))(xs), expected)


def recorded(program):
    """Returns the program exported by torch.export, where control flow is operators on graphs."""
    x = torch.zeros(3, dtype=torch.float64)
    return torch.export.export(_Module(program.ours), (x,)).module()


class _Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program",
    [
        p
        for p in TORCH_PROGRAMS
        if p.name in ("cond", "while_loop", "scan", "cond of what it captures", "cond in scan")
    ],
    ids=repr,
)
def test_exported_programs_are_transformed(program):
    xs = batch(("vmap",), 3)
    graph = recorded(program)
    slope = tl.vmap(tl.grad(lambda x: (graph(x) * SCALE).sum()))
    alone = tl.grad(lambda x: (program.plain(x) * SCALE).sum())
    torch.testing.assert_close(slope(xs), torch.stack([alone(x) for x in xs.unbind()]))


def test_nests_of_torchs_and_our_control_flow():
    def ours_around(x):
        y = x.exp()
        return tl.cond(
            x[0] > 0,
            lambda: torch.cond(x[1] > 0, lambda: y.sqrt(), lambda: y * x, ()),
            lambda: scan(lambda c, _: (c * y, c + x), x, x)[1].sum(0),
        )

    def theirs_around(x):
        y = x.exp()
        return torch.cond(
            x[0] > 0,
            lambda: tl.while_loop(lambda z: z.sum() < 20, lambda z: z * 2 + y, y),
            lambda: tl.cond(x[1] > 0, lambda: y * x, lambda: y.sin()),
        )

    def slope(f):
        return tl.grad(lambda x: f(x).square().sum())

    xs = batch(("vmap",), 3)
    for f in (ours_around, theirs_around, slope(ours_around), slope(theirs_around)):
        alone = torch.cat([tl.vmap(f)(x.unsqueeze(0)) for x in xs.unbind()])
        torch.testing.assert_close(tl.vmap(f)(xs), alone)


@pytest.mark.sweep
def test_captured_cond_runs_either_branch():
    def f(x):
        return torch.cond(x.sum() > 0, lambda: x.sqrt(), lambda: x * 2, ())

    g = tl.compile(tl.vmap(tl.grad(lambda x: f(x).sum())))
    xs = torch.tensor([[4.0], [-1.0]])
    torch.testing.assert_close(g(xs), torch.tensor([[0.25], [2.0]]))
    torch.testing.assert_close(g(-xs), torch.tensor([[2.0], [0.5]]))


def test_behavior_outside_transforms_is_torchs():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph

    def f(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.ones(3, requires_grad=True)
    torch.testing.assert_close(torch.compile(f, backend=backend)(x), x.sin())
    assert any("cond" in str(node.target) for node in compiled[0].graph.nodes)
    torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], x.cos())
    tl.grad(lambda x: f(x).sum())(x.detach())
    torch.testing.assert_close(torch.autograd.grad(f(-x).sum(), x)[0], x.sin().neg())
    torch.testing.assert_close(
        torch.compile(tl.vmap(f), backend="eager")(torch.tensor([[1.0], [-1.0]])),
        torch.tensor([[math.sin(1)], [math.cos(1)]]),
    )


def test_keyed_draws_are_per_sample():
    def draws(x):
        return torch.cond(x > 0, lambda: torch.rand(()), lambda: torch.randn(()), ())

    key = tl.random.key(0)
    xs = torch.tensor([1.0, -1.0, 1.0, 1.0])
    keyed = tl.vmap(draws, randomness="keyed", key=key)
    alone = [tl.seeded(draws, tl.random.fold_in(key, i))(x) for i, x in enumerate(xs.unbind())]
    torch.testing.assert_close(keyed(xs), torch.stack(alone))
    assert keyed(xs).unique().numel() == 4
