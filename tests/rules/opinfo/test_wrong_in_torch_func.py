"""Where torch.func's second derivatives are wrong, ours equal reverse over reverse.

Where reverse mode is unavailable, ours equal differences of first derivatives.
"""

import pytest
import torch

import torchlayers
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.opinfo.differences import DIFFERENCES, WRONG_SECOND_DERIVATIVE
from tests.rules.opinfo.transforms import jvp_jvp
from tests.support.derivatives import central_difference

WRONG = {name for (name, _, _), reason in DIFFERENCES.items() if WRONG_SECOND_DERIVATIVE in reason}


# Reverse mode treats some of their results as constants, or has no third derivative of them.
STATISTICS = {
    "native_batch_norm",
    "native_layer_norm",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
}


@pytest.mark.parametrize(
    "op",
    [op for op in ops(torch.float64) if full_name(op) in WRONG - STATISTICS],
    ids=full_name,
)
def test_second_forward_derivatives_are_those_of_reverse_mode(op):
    found = [case for case in cases(op, torch.float64, 12) if case.inputs[0].numel()]
    assert found
    for case in found:
        inputs = [x.requires_grad_() for x in case.inputs]
        outputs = case.differentiable(*inputs)
        weights = [torch.randn_like(output) for output in outputs]
        total = sum((w * output).sum() for w, output in zip(weights, outputs, strict=True))
        once = along(total, inputs, case.tangents())
        expected = along(once, inputs, case.tangents())
        _, seconds = jvp_jvp(torchlayers, case)
        actual = sum((w * second).sum() for w, second in zip(weights, seconds, strict=True))
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize(
    "op", [op for op in ops(torch.float64) if full_name(op) in STATISTICS], ids=full_name
)
def test_second_forward_derivatives_are_differences_of_the_first(op):
    for case in cases(op, torch.float64, 12):
        tangents = case.tangents()

        def first(*inputs, case=case, tangents=tangents):
            return torchlayers.jvp(case.differentiable, inputs, tuple(tangents))[1]

        expected = central_difference(first, case.inputs, tangents, 1e-5)
        _, actual = jvp_jvp(torchlayers, case)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def along(total, inputs, tangents):
    """The derivative of a scalar along the tangents, by reverse mode."""
    if not total.requires_grad:
        return torch.zeros_like(total)
    gradients = torch.autograd.grad(
        total, inputs, create_graph=True, allow_unused=True, materialize_grads=True
    )
    return sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
