"""Loops until every sample has converged, and warns where one has not."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.batched.samples import unbatch_all, without_function_modes
from torchlayers.control_flow.traced.dispatch import any_recorded
from torchlayers.control_flow.while_loop import while_loop
from torchlayers.core.errors import location
from torchlayers.core.torch_private import torch_c

Carry = tuple[Tensor, ...]


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached its tolerance.

    Example:
        >>> import warnings
        >>> from torchlayers.implicit import ConvergenceWarning, solvers
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = solvers.cg(lambda v: torch.arange(1, 5) * v, torch.ones(4), maxiter=1)
        >>> caught[0].category is ConvergenceWarning
        True

    Source: the warning of the same name in scikit-learn.
    """


def iterate(
    goes_on: Callable[[Carry], Tensor],
    body: Callable[[Any, Carry], Carry],
    carry: Carry,
    limit: int,
) -> Carry:
    """Calls carry = body(i, carry) while goes_on(carry), up to limit times.

    In a batch, the loop continues until all samples have finished, and those that have keep their
    carry. In a captured graph it is a while_loop, and i a tensor instead of an int.
    """
    if any_recorded(*carry):
        start = torch.zeros((), dtype=torch.int64, device=carry[0].device)
        return while_loop(
            lambda state: (state[0] < limit) & goes_on(state[1:]),
            lambda state: (state[0] + 1, *body(state[0], state[1:])),
            (start, *carry),
        )[1:]
    for i in range(limit):
        alive = goes_on(carry)
        number, total = _count(alive)
        if not number:
            break
        new = body(i, carry)
        carry = new if number == total else select(alive, new, carry)
    return carry


def select(flag: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> Carry:
    """The new tensors where the flag is true, and the old ones where it is not."""
    return tuple(torch.where(flag, *pair) for pair in zip(new, old, strict=True))


def _count(flags: Tensor) -> tuple[int, int]:
    """Returns how many of the flags are true in all samples at all levels, and how many there
    are."""
    with without_function_modes(), torch_c._DisableFuncTorch():
        values = unbatch_all(flags)[0]
        return int(values.count_nonzero()), values.numel()


def warn_unless(
    converged: Tensor, api: str, residuals: Tensor, bound: float | None, hint: str
) -> None:
    """Warns if one of the flags is false, unless they have no values yet.

    Args:
        converged: one bool, or one for each sample.
        residuals: what to quote, of the same shape.
        bound: what they should have been at most.
    """
    if any_recorded(converged):
        return
    number, total = _count(converged)
    if number == total:
        return
    with without_function_modes(), torch_c._DisableFuncTorch():
        worst = unbatch_all(residuals)[0].abs().max().item()
    samples = "" if total == 1 else f" for {total - number} of {total} samples"
    limit = "" if bound is None else f", and should be at most {bound:.1e}"
    warnings.warn(
        f"torchlayers: {api} did not converge{samples}: the relative residual is {worst:.1e}"
        f"{limit}.{location()} {hint}",
        ConvergenceWarning,
        stacklevel=2,
    )


def ratio_or_zero(a: Tensor, b: Tensor) -> Tensor:
    """a / b, or zero where b is zero."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def norm(x: Tensor) -> Tensor:
    """The Euclidean norm, whose squares neither overflow nor underflow."""
    scale = magnitude(x)
    length: Tensor = torch.linalg.vector_norm(x / scale)
    return scale * length


def relative_norm(x: Tensor, reference: Tensor) -> Tensor:
    """norm(x) / norm(reference). The norms themselves may overflow; zero of zero is zero."""
    scale = magnitude(reference)
    smallest = torch.finfo(x.dtype).tiny
    length: Tensor = torch.linalg.vector_norm(reference / scale)
    return norm(x / scale) / length.clamp(min=smallest)


def relative_change(new: Tensor, old: Tensor) -> Tensor:
    """norm(new - old) / (1 + norm(new)): nan if new is not finite."""
    scale = _largest(new).clamp(min=1)
    change: Tensor = torch.linalg.vector_norm((new - old) / scale)
    length: Tensor = torch.linalg.vector_norm(new / scale)
    return change / (1 / scale + length)


def magnitude(x: Tensor) -> Tensor:
    """The largest absolute value; one for zeros, so that one can divide by it."""
    largest = _largest(x)
    return torch.where(largest == 0, 1.0, largest)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax() if x.numel() else x.new_zeros(())


class Vectors:
    """Lists of tensors as single real vectors, of at least single precision. Complex tensors become
    pairs of reals, so that maps that are linear over the reals only are linear too.

    Attributes:
        eps: the rounding error of the tensors' dtype, from which tolerances follow.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.shapes = [x.shape for x in like]
        self.dtypes = [x.dtype for x in like]
        real = [x.real.dtype if x.is_complex() else x.dtype for x in like]
        self.dtype = real[0]
        for dtype in real[1:]:
            self.dtype = torch.promote_types(self.dtype, dtype)
        self.eps = torch.finfo(self.dtype).eps
        # Sums of squares overflow in half precision, and torch has no decompositions there.
        self.dtype = torch.promote_types(self.dtype, torch.float32)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = [
            (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).reshape(-1)
            for x in tensors
        ]
        if len(flat) == 1:
            return flat[0].to(self.dtype)
        return torch.cat([x.to(self.dtype) for x in flat])

    def split(self, vector: Tensor) -> list[Tensor]:
        parts, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            count = shape.numel() * (1 + dtype.is_complex)
            part = vector.narrow(0, start, count)
            start += count
            if dtype.is_complex:
                part = part.reshape(*shape, 2).to(dtype.to_real())
                parts.append(torch.complex(part[..., 0], part[..., 1]))
            else:
                parts.append(part.reshape(shape).to(dtype))
        return parts
