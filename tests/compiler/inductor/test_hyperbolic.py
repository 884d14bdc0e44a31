"""tanh in Inductor's code, vectorized and scalar: close to the library's tanh."""

import math

import pytest
import torch

import torchlayers as tl

NUMBERS = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-45, 1, 100_001)])
# Vectorized, and scalar (where vectorization is turned off).
OPTIONS = {"vectors": None, "numbers": {"cpp.simdlen": 1}}


def units_apart(result, numbers):
    expected = numbers.double().tanh()
    size = expected.float().abs()
    unit = torch.nextafter(size, torch.tensor(math.inf)) - size
    return ((result - expected).abs() / unit).max()


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
def test_tanh_is_within_a_few_ulps(name):
    compiled = tl.compile(torch.tanh, check=False, options=OPTIONS[name])
    result = compiled(NUMBERS)
    assert units_apart(result, NUMBERS) <= 7
    assert result.abs().max() <= 1
    assert not torch.equal(result, NUMBERS.tanh())  # it is not the library's
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    result = compiled(special)
    torch.testing.assert_close(result, special.tanh(), rtol=0, atol=0, equal_nan=True)
    assert result[3:].signbit().tolist() == [False, True]


@pytest.mark.parametrize("name", OPTIONS)
def test_tanh_of_large_numbers_is_one(name):
    """Their powers overflow, where infinity over infinity would be nan."""
    large = torch.tensor([9.5, 1e6, 1e20, math.inf]).repeat(5)
    compiled = tl.compile(lambda x: (x.tanh(), (-x).tanh()), check=False, options=OPTIONS[name])
    result, negative = compiled(large)
    assert result.tolist() == [1.0] * 20
    assert negative.tolist() == [-1.0] * 20


@pytest.mark.full
def test_beside_other_dtypes():
    x, i = torch.randn(40, 33), torch.randint(0, 5, (40, 33))
    for func, args, rounding in (
        (lambda x, i: x.tanh() * i, (x, i), 1e-6),
        (lambda x, y: x.tanh() * y, (x, x.double()), 1e-6),
        (lambda x, i: torch.where(i > 2, x.tanh(), i), (x, i), 1e-6),
        (lambda x: x.t().tanh().sum(0), (x,), 1e-5),
        (lambda x: x.tanh(), (x.bfloat16(),), 1e-2),
        (lambda x: x.tanh(), (x.half(),), 1e-3),
    ):
        result, expected = tl.compile(func)(*args), func(*args)
        torch.testing.assert_close(result, expected, rtol=rounding, atol=rounding)


def test_double_precision_uses_the_librarys_tanh():
    x = torch.randn(1000, dtype=torch.float64)
    torch.testing.assert_close(tl.compile(torch.tanh)(x), x.tanh(), rtol=1e-15, atol=0)


@pytest.mark.sweep
def test_cache_on_disk_separates_both_tanhs():
    def func(x):
        return x.tanh()

    theirs = torch.compile(func, options={"fallback_random": True})
    ours = tl.compile(func)(NUMBERS)
    assert units_apart(theirs(NUMBERS), NUMBERS) <= 1.1
    assert not torch.equal(ours, theirs(NUMBERS))
