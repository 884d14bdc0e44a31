"""Compiled functions that write to real and imaginary parts."""

import pytest
import torch

import torchlayers as tl
from tests.support.calls import assert_same

VALUES = torch.randn(4, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))


def part(z):
    z.real.mul_(2)
    z.imag[1:].copy_(z.real[1:])
    return z * 2, z.abs()


def as_real(z):
    torch.view_as_real(z)[..., 1].neg_()
    z.view(torch.float64)[0].add_(1)
    return z.conj() * z, z.sum()


def of_a_conjugate(z):
    z.conj().imag.mul_(3)
    z.conj().mul_(2j)
    return z.imag.sin()


def of_its_own(z):
    made = z * 1j
    made.imag.sin_()
    made.real.copy_(made.imag)
    return made, made.real + z.imag


PROGRAMS = [part, as_real, of_a_conjugate, of_its_own]


@pytest.mark.parametrize("options", [{"backend": "replay"}, {"check": False}], ids=str)
@pytest.mark.parametrize("transform", [lambda f: f, tl.vmap], ids=["plain", "vmap"])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_writes_to_real_and_imaginary_parts(f, transform, options):
    compiled = tl.compile(transform(f), **options)
    for _ in range(2):
        given, expected = VALUES.clone(), VALUES.clone()
        results, expected_results = compiled(given), transform(f)(expected)
        assert_same(results, expected_results, rounded=True)
        assert_same(given, expected, rounded=True)
    assert compiled.report().signatures[0].how.startswith("replay")
