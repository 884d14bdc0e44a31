"""Patterns of random programs miss no entry of their Jacobians, here or at other inputs."""

import warnings

import pytest
import torch

import torchlayers as tl
from tests.fuzz import Case, cases
from tests.fuzz.checks import KNOWN, attempt, by_torch
from tests.fuzz.oracles import Differences, Plain
from tests.fuzz.test_random_programs import check_many

# Jacobians with more entries are not computed.
LARGEST = 800
# Entries of differences that are larger are not rounding.
SURE = 1e-6


# Errors of detection, which are no wrong pattern: a bug of nested functionalizations, to which a
# layer in Python adds one, and a refusal for the same reason.
REFUSED = [*KNOWN, "uses a captured tensor of an enclosing transform"]


def detected(f, x, **options):
    """The pattern as a mask, or None if the program is refused."""
    try:
        return tl.sparsity(f, x, **options).to_dense().bool()
    except Exception as error:
        if any(words in str(error) for words in REFUSED):
            return None
        raise


def function(case: Case, **libraries):
    """The case's function, with the same random draws in each call."""
    inner = case.function(**libraries)

    def call(x):
        torch.default_generator.manual_seed(0)
        return inner(x)

    return call


def quickest(case: Case):
    """Its function for many calls: by loops and plain autograd, where those have no error, as a
    linearize costs a recording at each call."""
    plain = by_torch(case, "plain")
    if isinstance(attempt(plain, plain=Plain), Exception):
        return function(case, tl=tl)
    return function(plain, plain=Plain)


def entries(jacobian, rows):
    """The nonzero entries; nan is not counted, as it spreads to zeros."""
    return jacobian.detach().reshape(rows, -1).nan_to_num(0.0, 1.0, 1.0)


def check_pattern(case: Case, differences: bool = True) -> None:
    """The program's Jacobian is in its patterns; that at other inputs is in the global one."""
    f, x = function(case, tl=tl), case.x.tensor().contiguous()
    try:
        y = f(x).detach()
    except Exception:  # which the other fuzz tests look into
        return
    is_real = y.is_floating_point() and x.is_floating_point()
    if not is_real or not 0 < y.numel() * x.numel() <= LARGEST:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        everywhere = detected(f, x)
    here = detected(f, x, local=True)
    if everywhere is None or here is None:
        return
    assert not (here & ~everywhere).any(), "the local pattern is not in the global one"
    reads = any("same path" in str(warning.message) for warning in caught)
    others = [] if reads else [x * 0.7 + 0.1, x.flip(0) if x.dim() else -x]
    for point, pattern in [(x, here), *((other, everywhere) for other in others)]:
        try:
            jacobian = tl.jacrev(f)(point)
        except Exception:
            continue
        missed = (entries(jacobian, y.numel()) != 0) & ~pattern
        assert not missed.any(), f"missed {missed.nonzero().tolist()} of the Jacobian at {point}"
        if differences and point is x and case.x.dtype == "float64":
            slopes = entries(Differences.jacfwd(quickest(case))(point), y.numel())
            missed = (slopes.abs() > SURE) & ~pattern
            assert not missed.any(), f"missed {missed.nonzero().tolist()} by differences"


def check_hessian(case: Case) -> None:
    f, x = function(case, tl=tl), case.x.tensor().contiguous()
    if not 0 < x.numel() ** 2 <= LARGEST or not x.is_floating_point():
        return
    number = lambda x: f(x).sum()  # noqa: E731
    try:
        expected = tl.hessian(number)(x)
    except Exception:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for is_local in (False, True):
            pattern = detected(number, x, of="hessian", local=is_local)
            if pattern is None:
                return
            missed = (entries(expected, x.numel()).reshape(pattern.shape) != 0) & ~pattern
            assert not missed.any(), f"missed {missed.nonzero().tolist()}, local={is_local}"


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_patterns_of_random_programs(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",)), check_pattern, 100, full)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{"mixed": True}, {"special": True}, {"draws": True}], ids=str)
def test_patterns_of_other_programs(options: dict[str, bool], full: bool) -> None:
    def check(case: Case) -> None:
        check_pattern(case, differences=not (case.x.special or "draws" in options))

    check_many(cases(1, ("tl",), **options), check, 100, full)


@pytest.mark.sweep
def test_patterns_of_hessians(full: bool) -> None:
    check_many(cases(1, ("tl",)), check_hessian, 100, full)
