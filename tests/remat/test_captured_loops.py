"""Checkpoints around control flow and solutions, compiled."""

import pytest
import torch

import torchlayers as tl

X = torch.ones(3, dtype=torch.float64)
FUNCTIONS = {
    "scan": lambda x: tl.scan(
        lambda c, e: (torch.tanh(c * e), c), x, torch.full((20, 3), 1.1, dtype=x.dtype)
    )[0].sum(),
    "fori_loop": lambda x: tl.fori_loop(0, 20, lambda i, c: c.sin() * 1.1, x).sum(),
    "map": lambda x: tl.map(lambda e: e.sin(), x.repeat(4)).sum(),
    "cond": lambda x: tl.cond(x.sum() > 1, lambda x: x.sin().sum(), lambda x: x.cos().sum(), x),
    "while_loop": lambda x: tl.while_loop(lambda c: c.sum() < 50, lambda c: c * 1.5, x).sum(),
    "custom_root": lambda x: tl.custom_root(lambda y: y**3 + y - x, torch.zeros_like(x)).sum(),
    "custom_linear_solve": lambda x: (
        tl.custom_linear_solve(lambda v: 2 * v, x, tl.implicit.solvers.cg).square().sum()
    ),
}


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize(
    "policy", [None, tl.checkpoint_policies.dots_saveable], ids=["all", "dots"]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, policy):
    f = FUNCTIONS[name]
    checkpointed = tl.checkpoint(f, policy=policy)
    right = tl.grad(f)(X)
    torch.testing.assert_close(tl.grad(checkpointed)(X), right)
    compiled = tl.compile(tl.grad(checkpointed), backend="replay")
    torch.testing.assert_close(compiled(X), right)
