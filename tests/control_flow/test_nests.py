"""Every construct in every nest of grad, jvp and vmap, two deep, against a loop over samples."""

import itertools

import pytest
import torch

import torchlayers as tl
from tests.control_flow.programs import PROGRAMS

WEIGHTS = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)


def grad(f, library):
    return lambda x: library.grad(lambda x: (f(x) * WEIGHTS).sum())(x)


def jvp(f, library):
    return lambda x: library.jvp(f, (x,), (x.cos() * WEIGHTS,))[1]


def vmap(f, library):
    return library.vmap(f)


def looped(f, library):
    """vmap, a sample at a time."""
    return lambda xs: torch.stack([f(x) for x in xs.unbind()])


KINDS = {"grad": grad, "jvp": jvp, "vmap": vmap}
NESTS = [*itertools.product(KINDS, repeat=1), *itertools.product(KINDS, repeat=2)]


def batch(nest):
    torch.manual_seed(1)
    sizes = [size for kind, size in zip(nest, (5, 4), strict=False) if kind == "vmap"]
    return torch.randn(*sizes, 3, dtype=torch.float64)


def transformed(f, nest, kinds, libraries):
    for kind, library in zip(reversed(nest), reversed(libraries), strict=True):
        f = kinds[kind](f, library)
    return f


def assert_as_alone(program, nest):
    x = batch(nest)
    ours = transformed(program.ours, nest, KINDS, [tl] * len(nest))
    alone = transformed(program.plain, nest, {**KINDS, "vmap": looped}, [tl] * len(nest))
    torch.testing.assert_close(ours(x), alone(x), rtol=1e-9, atol=1e-12)
    assert tl.current_stack() == ()


@pytest.mark.parametrize("nest", NESTS, ids="-".join)
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_each_sample_has_what_it_has_alone(program, nest):
    assert_as_alone(program, nest)


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
    x = batch(nest)
    theirs = transformed(program.ours, nest, KINDS, [torch.func] * len(nest))
    mixed = transformed(program.ours, nest, KINDS, [torch.func, tl][: len(nest)])
    alone = transformed(program.plain, nest, {**KINDS, "vmap": looped}, [tl] * len(nest))
    torch.testing.assert_close(theirs(x), alone(x), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mixed(x), alone(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_gradients_are_those_of_finite_differences(program):
    torch.manual_seed(2)
    xs = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    f = tl.vmap(program.ours)
    torch.autograd.gradcheck(f, xs)
    torch.autograd.gradcheck(tl.vmap(grad(program.ours, tl)), xs)
