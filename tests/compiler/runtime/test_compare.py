"""Comparing two implementations up to rounding."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchlayers as tl
from torchlayers.compiler.runtime.compare import CallSnapshot, run_and_compare, sensitivity


def cancelling(x):
    """A sum of zero, with rounding."""
    return [(x - x.mean(0)).sum(0)]


def in_another_order(x):
    return [(x - x.mean(0)).flip(0).cumsum(0)[-1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sum_that_cancels_is_compared_with_the_size_of_what_was_added(dtype):
    x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = CallSnapshot([x], [], None)

    def problem_of(run):
        reference = lambda given: cancelling(*given)  # noqa: E731
        return run_and_compare(before, reference, lambda given: run(*given), None)[1]

    assert problem_of(in_another_order) is None
    assert "is off by" in problem_of(lambda x: [cancelling(x)[0] + 0.1])
    assert "is off by" in problem_of(lambda x: [(x[1:] - x.mean(0)).sum(0)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_inputs_are_perturbed_in_each_precision(dtype):
    x = torch.ones(4, dtype=dtype)
    (allowed,) = sensitivity(lambda given: [*given], [x], (), [x])
    assert 4 * torch.finfo(dtype).eps <= allowed / 64 <= 8 * torch.finfo(dtype).eps


@pytest.mark.full
def test_bias_before_a_batch_norm_has_a_gradient_of_rounding():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    apply, parameters, buffers = tl.functional(net.double())

    def loss(parameters, buffers, x, y):
        output, buffers = apply(parameters, buffers, x)
        return F.cross_entropy(output, y), buffers

    compiled = tl.compile(tl.grad(loss, has_aux=True), wait=True)
    compiled(parameters, buffers, torch.randn(64, 10).double(), torch.randint(0, 3, (64,)))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]
