"""Compiled control-flow programs in nests of transforms, compared with eager execution."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.programs import PROGRAMS

BATCH = torch.tensor(
    [[1.0, 0.5, 0.2], [-1.0, 0.3, 0.4], [0.9, -0.2, 1.1], [-0.3, -0.6, -1.2]], dtype=torch.float64
)


def total(f):
    return lambda x: f(x).sum()


NESTS = {
    "vmap": tl.vmap,
    "vmap(grad)": lambda f: tl.vmap(tl.grad(total(f))),
    "grad(vmap)": lambda f: tl.grad(total(tl.vmap(f))),
    "vmap(jvp)": lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),))[1]),
}
NAMES = [
    "cond of transforms, select",
    "cond in cond, select",
    "switch, select",
    "while_loop, hold",
    "while_loop over a pytree, hold",
    "while_loop to where nan begins, hold",
    "fori_loop, hold",
    "while_loop in cond, hold",
    "cond in while_loop, hold",
    "cond in scan",
]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name in NAMES], ids=str)
def test_compiled_nest_equals_eager(program, nest):
    nested = NESTS[nest](program.ours)
    compiled = tl.compile(nested, backend="replay", check=False)
    for batch in (BATCH, BATCH.flip(0) / 2):
        torch.testing.assert_close(compiled(batch), nested(batch))
    assert len(compiled.report().signatures) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["cond of what it captures, select", "while_loop, hold"])
def test_second_derivatives(name):
    (program,) = [p for p in PROGRAMS if p.name == name]
    nested = tl.hessian(total(program.ours))
    compiled = tl.compile(nested, backend="replay", check=False)
    for x in BATCH[:2]:
        torch.testing.assert_close(compiled(x), nested(x))


def written(x):
    y = x * 1
    y.add_(x)
    y[..., 1:].mul_(0.5)
    return y.view(-1).sin().view_as(x)


PROGRAMS_WITH_WRITES = {
    "cond": lambda x: tl.cond(x.sum() > 0, lambda p: written(p) * x.cos(), lambda p: p * 2, x),
    "switch": lambda x: tl.switch((x.sum() > 0).long(), [written, torch.cos, torch.sin], x),
    "while_loop": lambda x: tl.while_loop(
        lambda carry: carry[0] < 5,
        lambda carry: (carry[0] + 1, written(carry[1])),
        (torch.tensor(0), x),
    )[1],
    "scan": lambda x: tl.scan(
        lambda carry, row: (carry + written(x * row).reshape(-1, 3).mean(0), carry), LONG[:3], LONG
    )[0],
    "map": lambda x: tl.map(lambda row: written(x * row), LONG),
}
LONG = torch.linspace(-1, 1, 40, dtype=torch.float64)
FUNCTIONALIZED = {
    "functionalize": lambda f, functionalize: functionalize(f),
    "functionalize(grad)": lambda f, functionalize: functionalize(tl.grad(total(f))),
    "grad(functionalize)": lambda f, functionalize: tl.grad(total(functionalize(f))),
    "functionalize(jvp)": lambda f, functionalize: functionalize(
        lambda x: tl.jvp(f, (x,), (x.cos(),))
    ),
    "functionalize(vmap)": lambda f, functionalize: functionalize(tl.vmap(f)),
    "vmap(functionalize)": lambda f, functionalize: tl.vmap(functionalize(f)),
    "functionalize(vmap(grad))": lambda f, functionalize: functionalize(tl.vmap(tl.grad(total(f)))),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("nest", FUNCTIONALIZED)
@pytest.mark.parametrize("program", PROGRAMS_WITH_WRITES)
def test_functionalize_around_and_inside(program, nest, remove):
    def nested(functionalize):
        return FUNCTIONALIZED[nest](PROGRAMS_WITH_WRITES[program], functionalize)

    functional = nested(lambda f: tl.functionalize(f, remove=remove))
    compiled = tl.compile(functional, backend="replay", check=False)
    for batch in (BATCH, BATCH.flip(0) / 2):
        torch.testing.assert_close(compiled(batch), nested(lambda f: f)(batch))


def jet(f):
    return lambda x: tl.jet(f, (x,), ([x.cos(), None],))[1]


IN_PYTHON_LAYERS = {
    "cond": (jet, lambda x: tl.cond(x.sum() > 0, torch.sin, torch.cos, x)),
    "switch": (tl.laplacian, lambda x: tl.switch((x.sum() > 0).long(), [torch.sin, torch.cos], x)),
    "while_loop": (
        jet,
        lambda x: tl.while_loop(lambda c: c.sum() < 3, lambda c: c * 1.5 + x, x.exp()),
    ),
    "scan": (tl.laplacian, lambda x: tl.scan(lambda c, r: (c * r.sin(), c), x[0], x.repeat(3))[1]),
    "newton": (jet, lambda x: tl.implicit.solvers.newton(lambda z: z + z**3 - x, x * 0)),
    "root": (tl.laplacian, lambda x: tl.custom_root(lambda z: z + z**3 - x, torch.zeros_like(x))),
}


@pytest.mark.sweep
@pytest.mark.parametrize("program", IN_PYTHON_LAYERS)
def test_inside_a_layer_written_in_python(program):
    transform, f = IN_PYTHON_LAYERS[program]
    compiled = tl.compile(transform(f), backend="replay")
    for x in BATCH[:2]:
        torch.testing.assert_close(compiled(x), transform(f)(x))
