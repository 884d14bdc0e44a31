"""Traces and differentiates samples of op_db by TorchScript, and compares them with autograd."""

import warnings

import torch
from torch import Tensor

from tests.rules.opinfo.cases import Case
from torchlayers.core import pytree
from torchlayers.graph import GraphError, differentiate


def check(case: Case) -> str:
    """Raises if the gradients of a differentiated trace differ from autograd's.

    Returns "equal", or why there is nothing to compare: "untraced", "constant" where autograd has
    no gradient, or "refused" where the graph has none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and traces are not exact
        inputs = [x.detach().clone().requires_grad_() for x in case.inputs]

        def function(*xs: Tensor) -> tuple[Tensor, ...]:
            return tuple(x for x in pytree.leaves(case.func(*xs)) if isinstance(x, Tensor))

        try:
            expected = _gradients(function, inputs)
        except RuntimeError:
            return "constant"
        if expected is None:
            return "constant"
        try:
            traced = torch.jit.trace(function, tuple(inputs), check_trace=False)
            same = _gradients(traced, inputs)
        except Exception:
            return "untraced"
        if same is None or not _are_close(same, expected):
            return "untraced"  # random, or by way of numbers that a trace makes constants
        try:
            gradient = differentiate(traced, tuple(inputs))
        except GraphError:
            return "refused"
        found = _gradients(gradient, inputs)
        torch.testing.assert_close(found, expected, equal_nan=True)
        return "equal"


def _gradients(function, inputs: list[Tensor]) -> list[Tensor] | None:
    torch.manual_seed(0)
    outputs = [y for y in pytree.leaves(function(*inputs)) if y.requires_grad]
    if not outputs:
        return None
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]
    gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]


def _are_close(some: list[Tensor], others: list[Tensor]) -> bool:
    try:
        torch.testing.assert_close(some, others, equal_nan=True)
    except AssertionError:
        return False
    return True
