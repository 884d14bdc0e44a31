"""Captured control flow in torch.func's transforms, which don't support its graph operators."""

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacrev, jvp, vmap

import torchlayers as tl
from torchlayers.errors import DataDependentError

X = torch.linspace(0.1, 1, 3, dtype=torch.float64)
WEIGHT = X + 0.1
TIMES = torch.linspace(0, 1, 20, dtype=torch.float64)


def scanned(x):
    last, sums = tl.scan(lambda c, t: ((c * t * WEIGHT + x).sin(), c.sum()), x * WEIGHT, TIMES)
    return last.sum() + sums.sum()


FUNCTIONS = {
    "scan": scanned,
    "map": lambda x: tl.map(lambda t: (t * x * WEIGHT).sin(), TIMES).sum(),
    "fori_loop": lambda x: tl.fori_loop(0, 20, lambda i, c: (c * x * WEIGHT).sin(), x).sum(),
    "cond": lambda x: tl.cond(
        x.sum() > 0, lambda u: (u * x * WEIGHT).sin(), lambda u: (u - 9).log(), x * 2
    ).sum(),
    "switch": lambda x: tl.switch(
        (x.sum() > 0).long(), [torch.log, lambda u: (u * x).cos()], x * 2
    ).sum(),
}
BATCH = torch.stack([X, X + 1])
TRANSFORMS = {
    "grad": grad,
    "jacrev": jacrev,
    "hessian": hessian,
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).sum()),
    "vmap of grad": lambda f: lambda x: vmap(grad(f))(BATCH * x),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
    "our grad of grad": lambda f: tl.grad(lambda x: grad(f)(x).sum()),
    "grad of our vmap": lambda f: grad(lambda x: tl.vmap(f)(BATCH * x).sum()),
    "functionalize": functionalize,
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_control_flow_is_unrolled_in_torch_funcs_transforms(f, transform):
    compiled = tl.compile(transform(f), backend="replay")
    torch.testing.assert_close(compiled(X), transform(f)(X))


@pytest.mark.parametrize("transform", [grad, functionalize])
def test_while_loop_compiles_in_parts_and_is_rejected_in_one_graph(transform):
    def f(x):
        return tl.while_loop(lambda c: c.sum() < 10, lambda c: c * 1.5 + x, x).sum()

    compiled = tl.compile(transform(f), backend="replay")
    for x in (X, 4 * X, 0.1 * X, 4 * X):  # another number of trips, each but the last
        torch.testing.assert_close(compiled(x), transform(f)(x))
    (signature,) = compiled.report().signatures
    assert len(signature.splits) > 0
    with pytest.raises(DataDependentError, match="don't support such loops during capture"):
        tl.make_graph(transform(f))(X)
    torch.testing.assert_close(tl.compile(tl.grad(f), backend="replay")(X), tl.grad(f)(X))
    assert tl.current_stack() == ()
