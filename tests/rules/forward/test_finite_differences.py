"""First and second derivatives of op_db's samples against central differences.

Unlike torch.func, finite differences are neither wrong nor unsupported. Elements for which two step
sizes disagree are where the function is not smooth, and are skipped.
"""

import warnings

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.support.derivatives import central_difference

STEPS = 1e-6, 1e-5
NARROW = torch.float16, torch.bfloat16, torch.float32, torch.complex32, torch.complex64

_SYMMETRIC = "the operator reads half of a matrix, and its derivative is that along all of it"
_HELD = "torch holds this operand, a mean or a weight, and so does torchlayers"
_PHASE = "eigenvectors have any phase"
_DETACHED = "torch takes the margin for a constant"
_ROUNDED = "results that are rounded go up in steps"
DIFFERENT = {
    "cholesky": _SYMMETRIC,
    "linalg.cholesky": _SYMMETRIC,
    "linalg.cholesky_ex": _SYMMETRIC,
    "linalg.eigh": _SYMMETRIC,
    "linalg.matrix_sqrth": _SYMMETRIC,
    "linalg.eigvalsh": _SYMMETRIC,
    "linalg.pinv.hermitian": _SYMMETRIC,
    "cholesky_inverse": _SYMMETRIC,
    "cholesky_solve": _SYMMETRIC,
    "linalg.eig": _PHASE,
    "svd_lowrank": _PHASE,
    "pca_lowrank": _PHASE,
    "native_layer_norm": _HELD,
    "_native_batch_norm_legit": _HELD,
    "_batch_norm_with_update": _HELD,
    "native_batch_norm": _HELD,
    "nn.functional.batch_norm": _HELD,
    "nn.functional.nll_loss": _HELD,
    "nn.functional.ctc_loss": "torch's gradient is for log-probabilities that add up to one",
    "as_strided_scatter": "torch's gradient keeps the cotangent of what is overwritten",
    "nn.functional.hinge_embedding_loss": _DETACHED,
    "nn.functional.cosine_embedding_loss": _DETACHED,
    "bfloat16": _ROUNDED,
    "half": _ROUNDED,
    "chalf": _ROUNDED,
    "normal": "torch takes the mean for a constant",
    "normal.number_mean": "torch takes the deviation for a constant",
}


def quietly(f, *arguments):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*arguments)


def or_none(f, *arguments):
    try:
        return quietly(f, *arguments)
    except (RuntimeError, NotImplementedError):
        return None


def differ(found, f, case):
    """What is wrong with the tangents found, and how many elements could be compared."""
    primals, tangents = case.inputs, case.tangents()
    compared = 0

    def wide(*inputs):
        return [y.to(torch.promote_types(y.dtype, torch.float64)) for y in quietly(f, *inputs)]

    fine, coarse = (central_difference(wide, primals, tangents, step) for step in STEPS)
    for our, one, other in zip(found, fine, coarse, strict=True):
        if our.dtype in NARROW:
            continue
        sure = torch.isclose(one, other, rtol=1e-3, atol=1e-4) & one.isfinite()
        compared += int(sure.sum())
        good = torch.isclose(our.to(one.dtype), one, rtol=1e-3, atol=1e-3) | ~sure
        if not good.all():
            return f"{our[~good]} for {one[~good]}", compared
    return "", compared


def smooth(case):
    """A real function with curvature in each of the operator's results."""

    def scalar(*inputs):
        parts = [
            torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
            for y in case.differentiable(*inputs)
        ]
        return sum(part.sin().sum() for part in parts)

    return scalar


def gradient(tf, case):
    places = tuple(range(len(case.inputs)))
    return lambda *inputs: quietly(tf.grad(smooth(case), argnums=places), *inputs)


def first(case):
    """(tangents, the function that they belong to)"""
    f = case.differentiable
    return or_none(lambda: tl.jvp(f, tuple(case.inputs), tuple(case.tangents()))[1]), f


def second(case):
    f = gradient(tl, case)
    found = or_none(lambda: tl.jvp(f, tuple(case.inputs), tuple(case.tangents()))[1])
    theirs = gradient(torch.func, case)
    return found, f if or_none(theirs, *case.inputs) is None else theirs


def wrong_of(op, dtype, samples):
    """Describes the first failing sample."""
    for derivative in (first, second):
        for case in cases(op, dtype, samples):
            found, f = derivative(case)
            if found is not None:
                wrong, _ = differ(found, f, case)
                if wrong:
                    return f"{derivative.__name__}: {wrong}"
    return ""


smoothly = [op for op in ops(torch.float64) if full_name(op) not in DIFFERENT]
others = [op for op in ops(torch.float64) if full_name(op) in DIFFERENT]


@pytest.mark.sweep
@pytest.mark.parametrize("op", smoothly, ids=full_name)
def test_derivatives_are_central_differences(op):
    assert not wrong_of(op, torch.float64, 1)


@pytest.mark.full
@pytest.mark.parametrize("op", smoothly, ids=full_name)
def test_derivatives_of_more_samples_are_central_differences(op):
    assert not wrong_of(op, torch.float64, 4)
    assert not wrong_of(op, torch.complex128, 4)


@pytest.mark.full
@pytest.mark.parametrize("op", others, ids=full_name)
def test_listed_differences_occur(op):
    assert wrong_of(op, torch.float64, None) or wrong_of(op, torch.complex128, None)


def test_differences_are_compared():
    sin = next(op for op in ops(torch.float64) if op.name == "sin")
    (case,) = cases(sin, torch.float64, 1)
    for derivative in (first, second):
        found, f = derivative(case)
        wrong, compared = differ([t * 1.1 for t in found], f, case)
        assert wrong and compared == found[0].numel()
