"""Functions of tensors alone whose derivatives are compared, and their own derivatives."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.testing.finite_differences import Function, real
from torchlayers.transforms.vjp import vjp


class Differentiable(NamedTuple):
    """A function of tensors that returns a tuple of tensors, all of them differentiable.

    Attributes:
        path: the modes in which it has been differentiated, first to last.
        arguments, results: what its arguments and results are, for messages.
    """

    call: Function
    path: tuple[str, ...]
    arguments: list[str]
    results: list[str]


def has_derivatives(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def forward(f: Differentiable) -> Differentiable:
    """The jvp of f, as a function of primals and tangents: its values and their tangents."""
    count = len(f.arguments)

    def call(*args: Tensor) -> tuple[Tensor, ...]:
        outputs, tangents = jvp(f.call, args[:count], args[count:])
        return (*outputs, *tangents)

    arguments, results = (
        [*names, *(f"the tangent of {name}" for name in names)]
        for names in (f.arguments, f.results)
    )
    return Differentiable(call, (*f.path, "fwd"), arguments, results)


def reverse(f: Differentiable) -> Differentiable:
    """The vjp of f, as a function of primals and cotangents: the cotangents of the primals."""
    count = len(f.arguments)

    def call(*args: Tensor) -> tuple[Tensor, ...]:
        return tuple(vjp(f.call, *args[:count])[1](args[count:]))

    arguments = [*f.arguments, *(f"the cotangent of {name}" for name in f.results)]
    results = [f"the cotangent of {name}" for name in f.arguments]
    return Differentiable(call, (*f.path, "rev"), arguments, results)


def pairing(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The real inner product of two lists of tensors."""
    return torch.stack([(real(a) * real(b)).sum() for a, b in zip(left, right, strict=True)]).sum()
