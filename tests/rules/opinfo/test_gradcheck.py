"""torch's own gradcheck and gradgradcheck on gradients computed by torchlayers.

gradgradcheck differentiates our gradient by plain autograd and checks the result.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import torchlayers as tl
from tests.rules.opinfo.cases import Case, cases, full_name, ops

Function = Callable[..., tuple[Tensor, ...]]

OPTIONS = {"fast_mode": True, "check_batched_grad": False, "nondet_tol": 1e-10}
SLOW = {"nn.functional.ctc_loss"}  # its second derivative takes minutes to check
CASES = [
    pytest.param(
        op,
        dtype,
        id=f"{full_name(op)}-{dtype}",
        marks=pytest.mark.full if dtype.is_complex or full_name(op) in SLOW else (),
    )
    for dtype in (torch.float64, torch.complex128)
    for op in ops(dtype)
]


def tracked_inputs(case: Case) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in case.inputs]


def by_autograd(case: Case) -> Function:
    """The results that have a gradient."""
    torch.manual_seed(0)
    results = case.differentiable(*tracked_inputs(case))
    places = [i for i, result in enumerate(results) if result.requires_grad]

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        results = case.differentiable(*inputs)
        return tuple(results[i] for i in places)

    return function


def by_us(case: Case) -> Function:
    """The same, with cotangents pulled back by torchlayers."""
    function = by_autograd(case)

    class Ours(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs: Tensor) -> tuple[Tensor, ...]:
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx, *cotangents: Tensor) -> tuple[Tensor, ...]:
            return tl.vjp(function, *ctx.saved_tensors)[1](cotangents)

    return Ours.apply


def problem(
    check: Callable[..., bool], function_of: Callable[[Case], Function], case: Case
) -> str | None:
    try:
        check(function_of(case), tracked_inputs(case), **OPTIONS)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck], ids=lambda check: check.__name__)
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_passes_wherever_autograd_does(op, dtype, check):
    (case,) = list(cases(op, dtype, 1))
    ours = problem(check, by_us, case)
    if ours is None:
        return
    theirs = problem(check, by_autograd, case)
    if theirs is None:
        raise AssertionError(ours)
    pytest.skip(f"plain autograd does not pass either: {theirs}")
