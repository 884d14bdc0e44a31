"""tanh in inductor's kernels: in single precision a quotient of polynomials."""

import math
import threading

import pytest
import torch
from torch._inductor import (
    compile_fx,  # noqa: F401  # which is how it is entered
    lowering,
)
from torch._inductor.codegen import cpp

import torchlayers as tl
from torchlayers.compiled import kernels
from torchlayers.compiled.tanh import tanh_as_a_quotient


@pytest.fixture
def written(monkeypatch):
    """The kernels that inductor has written."""
    texts = []
    read = kernels._read
    monkeypatch.setattr(
        kernels, "_read", lambda types, text: (texts.append(text), read(types, text))[1]
    )
    return texts


def by_inductor(func, *args):
    compiled = tl.compile(func)
    result = compiled(*args)
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]
    return result


@pytest.mark.parametrize("size", [200_002, 1], ids=["vectors", "numbers"])
def test_within_a_few_units_in_the_last_place(size, written):
    numbers = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-45, 1, 100_001)])[-size:]
    result, expected = by_inductor(torch.tanh, numbers), numbers.double().tanh()
    unit = torch.nextafter(expected.float().abs(), torch.tensor(math.inf)) - expected.float().abs()
    assert ((result - expected).abs() <= 7 * unit).all()
    assert result.abs().max() <= 1
    assert written
    assert "tanh" not in "".join(written)


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_of_what_is_no_number(rows):
    given = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0]).expand(rows, 5).contiguous()
    result = by_inductor(lambda x: x.tanh(), given)
    torch.testing.assert_close(result, given.tanh(), equal_nan=True)
    assert result[:, 3:].signbit().tolist() == [[False, True]] * rows


def test_in_double_precision_it_is_the_librarys(written):
    numbers = torch.linspace(-12, 12, 1001, dtype=torch.float64)
    result = by_inductor(lambda x: x.tanh() + 1, numbers)
    torch.testing.assert_close(result, numbers.tanh() + 1, rtol=1e-15, atol=1e-15)
    assert "tanh" in "".join(written)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision(dtype):
    numbers = torch.linspace(-5, 5, 1001).to(dtype)
    torch.testing.assert_close(by_inductor(lambda x: x.tanh() * 2, numbers), numbers.tanh() * 2)


def test_among_integers_and_doubles():
    x, y, z = torch.randn(9, 33), torch.arange(33), torch.randn(33, dtype=torch.float64)
    f = lambda x, y, z: (x.tanh() * y, x.tanh().double() * z)  # noqa: E731
    for one, other in zip(by_inductor(f, x, y, z), f(x, y, z), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_what_a_product_reads_is_computed_once(written):
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    f = lambda x, w: x.tanh() @ w  # noqa: E731
    torch.testing.assert_close(by_inductor(f, x, w), f(x, w))
    (text,) = written
    products = text[text.index("tmp_acc0") :]
    assert "square" in text
    assert "square" not in products


def test_other_threads_write_what_they_wrote():
    places = lambda: (cpp.CppVecOverrides.tanh, cpp.CppOverrides.tanh,  # noqa: E731
                      lowering.lowerings[torch.ops.aten.tanh.default])  # fmt: skip
    before, found = places(), []

    class Single:
        dtype = torch.float32

        def __str__(self):
            return "x"

    def write():
        found.append(cpp.CppOverrides.tanh(Single()))

    with tanh_as_a_quotient():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        write()
    assert places() == before
    assert "tanh" in found[0]
    assert "tanh" not in found[1]
