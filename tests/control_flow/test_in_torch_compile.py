"""Control flow in functions that torch.compile traces, beside transforms.

Dynamo can't trace torch.cond nor torch.while_loop inside torch.func's grad and jvp.
"""

import re

import pytest
import torch
from torch import nn

import torchlayers as tl

# Of torch's own code: Dynamo looks at .grad of each tensor that a resumed function reads.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

X = torch.tensor([0.3, 0.7], dtype=torch.float64)
W = torch.tensor([1.1, 0.4], dtype=torch.float64)
LAYER = nn.Linear(2, 2).double()


def thrice(x):
    return tl.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1].sin() * x), (torch.tensor(0), x)
    )


PROGRAMS = {
    "cond": lambda x: tl.cond(x.sum() > 2, lambda x: x.sin() * W, lambda x: x.cos(), x),
    "cond of a module": lambda x: tl.cond(x.sum() > 0, LAYER, torch.cos, x),
    "switch": lambda x: tl.switch((x[0] > 0.5).long(), [torch.sin, torch.exp], x),
    "while_loop": lambda x: thrice(x)[1],
}
TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (W,))[1],
    "vmap": lambda f: lambda x: tl.vmap(f)(torch.stack([x, x + 1])),
    "jacrev": tl.jacrev,
    "hessian": lambda f: tl.hessian(lambda x: f(x).sum()),
    "vmap of grad": lambda f: (
        lambda x: tl.vmap(tl.grad(lambda x: f(x).sum()))(torch.stack([x, x + 1]))
    ),
}
BREAKS = {(program, name) for program in PROGRAMS for name in TRANSFORMS} - {
    (program, "vmap") for program in PROGRAMS if program != "while_loop"
}
pairs = pytest.mark.parametrize(("program", "name"), [(p, n) for p in PROGRAMS for n in TRANSFORMS])


@pytest.fixture(autouse=True)
def forget_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pairs
@pytest.mark.sweep
def test_inside_a_transform_that_is_compiled(program, name):
    f = TRANSFORMS[name](PROGRAMS[program])
    torch.testing.assert_close(torch.compile(f, backend="eager")(X), f(X))


@pairs
@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_inside_a_transform(program, name, backend):
    f, transform = PROGRAMS[program], TRANSFORMS[name]
    compiled = torch.compile(f, backend=backend)
    torch.testing.assert_close(transform(compiled)(X), transform(f)(X))


@pairs
@pytest.mark.sweep
def test_without_graph_breaks(program, name):
    f = TRANSFORMS[name](PROGRAMS[program])
    whole = torch.compile(f, backend="eager", fullgraph=True)
    if (program, name) not in BREAKS:
        torch.testing.assert_close(whole(X), f(X))
        return
    api = program.split()[0]
    words = f"torchlayers: torch.compile can't trace a {api} inside a transform"
    with pytest.raises(RuntimeError, match=re.escape(words)) as caught:
        whole(X)
    assert "Leave out fullgraph=True: the transform then runs uncompiled" in str(caught.value)


def test_a_carry_that_the_body_captures():
    """It would be an alias, which torch.while_loop refuses."""
    whole = torch.compile(thrice, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(X), thrice(X))
