"""Every construct in every two-deep nest of grad, jvp and vmap, against a loop over samples."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.programs import PROGRAMS
from tests.support.nests import LOOPED, NESTS, as_alone, batch, grad, nests, transformed


@pytest.mark.sweep
@nests
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_batched_program_equals_a_loop_over_samples(program, nest):
    as_alone(program.ours, program.plain, nest, batch(nest, 3))


@pytest.mark.parametrize("nest", [nest for nest in NESTS if "vmap" in nest], ids="-".join)
@pytest.mark.parametrize(
    "program",
    [
        p
        for p in PROGRAMS
        if "captures" in p.name or "trans" in p.name or p.name == "while_loop, hold"
    ],
    ids=repr,
)
def test_layers_of_torch_func_may_be_around(program, nest):
    x = batch(nest, 3)
    theirs = transformed(program.ours, nest, libraries=[torch.func] * 2)
    mixed = transformed(program.ours, nest, libraries=[torch.func, tl])
    alone = transformed(program.plain, nest, LOOPED)
    torch.testing.assert_close(theirs(x), alone(x), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mixed(x), alone(x), rtol=1e-9, atol=1e-12)


def some_branch(x):
    return tl.cond(x.sum() > 0, torch.sin, torch.cos, x)


def some_trips(x):
    return tl.while_loop(lambda c: c.sum() > 0.5, lambda c: c.sin() * 0.8, x)


@pytest.mark.parametrize("f", [some_branch, some_trips])
@pytest.mark.parametrize(
    "around",
    [
        tl.functionalize,
        tl.laplacian,
        lambda f: tl.hessian_diagonal(lambda x: f(x).sum()),
        lambda f: lambda x: tl.jet(f, (x,), ([torch.ones_like(x), None],))[1],
    ],
    ids=["functionalize", "laplacian", "hessian_diagonal", "jet"],
)
def test_batched_predicates_inside_layers(f, around):
    x = torch.tensor([[0.5, -0.3, 0.8], [-0.5, 0.3, -0.8]], dtype=torch.float64)
    samples = [tl.tree.leaves(around(f)(each)) for each in x]
    wanted = [torch.stack(each) for each in zip(*samples, strict=True)]
    torch.testing.assert_close(tl.tree.leaves(tl.vmap(around(f))(x)), wanted)


@pytest.mark.sweep
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_gradients_equal_finite_differences(program):
    torch.manual_seed(2)
    xs = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    f = tl.vmap(program.ours)
    torch.autograd.gradcheck(f, xs)
    torch.autograd.gradcheck(tl.vmap(grad(program.ours, tl)), xs)
