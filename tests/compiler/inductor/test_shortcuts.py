"""Strides of indices are those that Inductor computes, without simplifying the indices."""

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch._inductor import config, sizevars
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor import patches
from torchlayers.compiler.inductor.patches import patched_inductor

x0, x1, s0 = sympy.symbols("x0 x1 s0", integer=True, nonnegative=True)

INDICES = {
    "a number": sympy.Integer(5),
    "a variable": x0,
    "rows": x1 + 8 * x0,
    "the other way": 3 - x0,
    "rows of a size that changes": s0 * x0 + x1 + 3,
    "two of such sizes": (s0 + 1) * x0 + x1,
    "a square": x0**2 + x1,
    "a quotient": FloorDiv(x0, 16) + 3 * x1,
    "a remainder": 2 * ModularIndexing(x0, 1, 32) + x1,
    "a comparison": sympy.Lt(x0, 3),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("var", [x0, x1])
def test_strides_equal_inductors(name, var):
    index = INDICES[name]
    if name == "a comparison":
        var = x1  # inductor subtracts the two
    plain = sizevars.stride_at, sizevars.simplify_index_in_vec_range
    expected = plain[0](index, var), plain[1](index, var, 16)
    with patched_inductor():
        ours = sizevars.stride_at(index, var), sizevars.simplify_index_in_vec_range(index, var, 16)
    for one, other in zip(ours, expected, strict=True):
        assert one == other or sympy.simplify(one - other) == 0
    assert plain == (sizevars.stride_at, sizevars.simplify_index_in_vec_range)


@pytest.mark.parametrize("name", ["a variable", "rows", "the other way"])
def test_sympy_simplify_is_not_called(name, monkeypatch):
    monkeypatch.setattr(sympy, "simplify", lambda *_: pytest.fail("simplified"))
    with patched_inductor():
        sizevars.stride_at(INDICES[name], x0)
        sizevars.simplify_index_in_vec_range(INDICES[name], x0, 16)


def rolled(x):
    return F.pad(x.roll(1, 0).reshape(3, 33, 50).transpose(1, 2), (1, 2)).cumsum(1)


PROGRAMS = {
    "softmax": (lambda x: (x.softmax(1) * x).sum(0), (99, 50)),
    "norms": (lambda x: F.layer_norm(x, (64,)).tanh() + x.var(0), (32, 64)),
    "views": (rolled, (99, 50)),
    "a lookup": (lambda x: x[(x[:, 0] > 0).long()].flip(1), (99, 50)),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2) * x.mean(), (2, 3, 17, 16)),
    "in half precision": (lambda x: (x.half().exp() + 1).float().amax(1), (48, 40)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_the_same(name, monkeypatch):
    program, shape = PROGRAMS[name]
    x = torch.randn(shape)
    graph = make_fx(lambda x: [program(x)], tracing_mode="fake")(x)

    def write():
        texts = []
        monkeypatch.setattr(
            patches.kernels,
            "compile_together",
            lambda sources: texts.extend(source.text for source in sources),
        )
        with config.patch(fx_graph_cache=False):
            inductor.lower_graph(graph, 1)
        return texts

    texts = write()
    monkeypatch.setattr(patches.shortcuts, "_is_sum", lambda _: False)
    assert write() == texts != []
