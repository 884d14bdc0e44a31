"""Shortcuts that replace slow symbolic computations of Inductor."""

import pytest
import sympy
from torch._inductor import compile_fx, sizevars  # noqa: F401  # imported first, as in a compilation
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torchlayers.compiler.inductor.speedups import faster_inductor

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
    with faster_inductor():
        found = sizevars.stride_at(index, var), sizevars.simplify_index_in_vec_range(index, var, 16)
    for one, other in zip(found, expected, strict=True):
        assert one == other or sympy.simplify(one - other) == 0
    assert plain == (sizevars.stride_at, sizevars.simplify_index_in_vec_range)


@pytest.mark.parametrize("name", ["a variable", "rows", "the other way"])
def test_sympy_simplify_is_not_called(name, monkeypatch):
    monkeypatch.setattr(sympy, "simplify", lambda *_: pytest.fail("simplified"))
    with faster_inductor():
        sizevars.stride_at(INDICES[name], x0)
        sizevars.simplify_index_in_vec_range(INDICES[name], x0, 16)
