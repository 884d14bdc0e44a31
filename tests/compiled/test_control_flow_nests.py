"""Programs of control flow in compiled functions, in nests of transforms, against eager ones."""

import pytest
import torch

import torchlayers as tl

from ..control_flow.programs import PROGRAMS

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


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name in NAMES], ids=str)
def test_one_recording_does_what_eager_code_does(program, nest):
    nested = NESTS[nest](program.ours)
    compiled = tl.compile(nested, backend="replay", check=False)
    for batch in (BATCH, BATCH.flip(0) / 2):
        torch.testing.assert_close(compiled(batch), nested(batch))
    assert len(compiled.report().signatures) == 1


@pytest.mark.parametrize("name", ["cond of what it captures, select", "while_loop, hold"])
def test_second_derivatives(name):
    (program,) = [p for p in PROGRAMS if p.name == name]
    nested = tl.hessian(total(program.ours))
    compiled = tl.compile(nested, backend="replay", check=False)
    for x in BATCH[:2]:
        torch.testing.assert_close(compiled(x), nested(x))
