"""Patterns of op_db's operators have all nonzero entries of their Jacobians, and no others, except
for the operators listed."""

import warnings
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.rules.opinfo.cases import Case, cases, full_name, ops

TRIED, SAMPLES, INPUTS, OUTPUTS = 8, 3, 60, 120
# As many samples are compared at least.
COMPARED = 1050
# Operators whose derivatives depend on the case at hand: others have more zeros at the samples'
# values than everywhere. The local pattern has the entries of the case, up to those of LOOSE.
BY_CASES = """
__rmod__ clamp_max clamp_min fmax fmin fmod kthvalue masked.median max.binary maximum min.binary
minimum native_dropout_backward nn.functional.adaptive_max_pool1d
nn.functional.alpha_dropout nn.functional.cosine_embedding_loss nn.functional.dropout
nn.functional.hardsigmoid nn.functional.hardtanh nn.functional.max_pool1d nn.functional.max_pool2d
nn.functional.multilabel_margin_loss nn.functional.prelu nn.functional.relu nn.functional.relu6
nn.functional.threshold remainder
"""
# Operators whose patterns may have entries that are zero in all samples, by reason.
LOOSE = {
    "zeros of these parameters or values": """
__rpow__ addr cdist corrcoef grid_sampler_3d index_add index_reduce.amax index_reduce.amin
masked.softmax masked.softmin native_layer_norm nn.functional.layer_norm
nn.functional.multi_head_attention_forward nn.functional.normalize
special.entr torch.ops.aten._safe_softmax.default
""",
    "no exact rule": """
_segment_reduce.lengths _segment_reduce.offsets nn.functional.embedding_bag
sparse.mm.reduce
""",
    "complex: one set for both parts": """
cdouble cfloat chalf complex fft.fft fft.fft2 fft.fftn fft.hfft fft.hfftn fft.ifft2 fft.ifftn
fft.ihfft2 fft.irfft fft.irfftn fft.rfft fft.rfft2 fft.rfftn stft view_as_complex
""",
    "dense for each matrix": """
cholesky cholesky_inverse linalg.cholesky linalg.cholesky_ex linalg.eig linalg.eigvals
linalg.householder_product linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve
linalg.norm linalg.norm.subgradients_at_zero linalg.pinv linalg.qr linalg.solve_triangular lu
lu_solve ormqr qr triangular_solve
""",
    "normal: its parameters have no derivative in torch; norm: by cases": """
norm norm.inf normal normal.number_mean
""",
}
LISTED = {name for names in LOOSE.values() for name in names.split()}


class Counts(NamedTuple):
    """Numbers of entries, over an operator's samples."""

    dense: int
    everywhere: int
    here: int


def jacobian(f, inputs: list[Tensor]) -> Tensor:
    """Its nonzero entries; nan is not counted, as it spreads to zeros."""
    blocks = tl.jacrev(f, tuple(range(len(inputs))))(*inputs)
    rows = [
        torch.cat([block.reshape(-1, x.numel()) for block, x in zip(row, inputs, strict=True)], 1)
        for row in blocks
    ]
    return torch.cat(rows).nan_to_num(0.0, 1.0, 1.0) != 0


def real_results(case: Case):
    def f(*inputs: Tensor) -> list[Tensor]:
        torch.default_generator.manual_seed(0)
        results = case.differentiable(*inputs)
        return [torch.view_as_real(x) if x.is_complex() else x for x in results if x.numel()]

    return f


def small(op):
    for case in cases(op, torch.float64, TRIED):
        inputs = case.inputs
        if [x.shape for x in inputs] == [(20, 20)]:  # elementwise: a corner will do
            inputs = [inputs[0][:3, :4].clone()]
        is_real = all(x.numel() and not x.is_complex() for x in inputs)
        if is_real and sum(x.numel() for x in inputs) <= INPUTS:
            yield case, inputs


@pytest.fixture(scope="module")
def compared() -> tuple[dict[str, Counts], list[str], int]:
    counts: dict[str, Counts] = {}
    wrong, total = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops(torch.float64):
            name = full_name(op)
            for case, inputs in list(small(op))[:SAMPLES]:
                f = real_results(case)
                try:
                    results = f(*inputs)
                    if not 0 < sum(x.numel() for x in results) <= OUTPUTS:
                        continue
                    expected = jacobian(f, inputs)
                except Exception:  # it has no Jacobian to compare with
                    continue
                places = tuple(range(len(inputs)))
                patterns = []
                for is_local in (False, True):
                    pattern = tl.sparsity(f, *inputs, argnums=places, local=is_local)
                    patterns.append(pattern.to_dense().bool())
                    if (expected & ~patterns[-1]).any():
                        wrong.append(f"{name}, local={is_local}")
                total += 1
                numbers = [int(x.sum()) for x in (expected, *patterns)]
                before = counts.get(name, (0, 0, 0))
                counts[name] = Counts(*(a + b for a, b in zip(before, numbers, strict=True)))
    return counts, wrong, total


def test_no_entry_is_missed(compared) -> None:
    _, wrong, total = compared
    assert wrong == []
    assert total >= COMPARED


@pytest.mark.sweep
def test_patterns_are_exact_but_for_listed_operators(compared) -> None:
    counts, _, _ = compared
    too_large = {name for name, each in counts.items() if each.everywhere != each.dense}
    assert too_large - LISTED == set(BY_CASES.split())


def test_local_patterns_are_those_of_the_case_at_hand(compared) -> None:
    counts, _, _ = compared
    too_large = {name for name, each in counts.items() if each.here != each.dense}
    assert too_large <= LISTED
    assert not too_large & set(BY_CASES.split())
