"""The Function that torch.distributions.Dirichlet samples with, in a form that transforms support.

torch's is an old-style Function, for which torch.func raises an error.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchlayers.core.operators import aten
from torchlayers.core.private_names import private_class

TORCH_DIRICHLET: Any = private_class("torch.distributions.dirichlet._Dirichlet")


class Dirichlet(torch.autograd.Function):
    """Dirichlet samples, differentiable in the concentration (implicit reparameterisation)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(concentration: Tensor) -> Tensor:
        numbers: Tensor = aten._sample_dirichlet(concentration)
        return numbers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs)
        ctx.save_for_forward(output, *inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        numbers, concentration = ctx.saved_tensors
        along = (numbers * cotangent).sum(-1, keepdim=True)
        gradient: Tensor = _slope(numbers, concentration) * (cotangent - along)
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        numbers, concentration = ctx.saved_tensors
        moved = _slope(numbers, concentration) * tangent
        pushed: Tensor = moved - numbers * moved.sum(-1, keepdim=True)
        return pushed


def _slope(numbers: Tensor, concentration: Tensor) -> Tensor:
    total = concentration.sum(-1, keepdim=True).expand_as(concentration)
    slope: Tensor = aten._dirichlet_grad(numbers, concentration, total)
    return slope
