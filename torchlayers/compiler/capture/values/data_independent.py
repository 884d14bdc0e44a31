"""Replacements, during capture, for torch functions that read the values of tensors.

Some check their arguments, some branch between two ways to compute the same result, and some take a
number and are passed a tensor. A check is skipped, also that of torch.distributions; of two ways,
the one that is right for all values is captured; and a number stays a tensor, detached since a
number has no autograd history either.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup


class SkippedChecks:
    """Whether a function is running that reads values only to report an error."""

    are_left_out = False

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        before, self.are_left_out = self.are_left_out, True
        try:
            yield
        finally:
            self.are_left_out = before


def data_independent_rules(checks: SkippedChecks) -> dict[Any, Callable[..., Any]]:
    """Returns the replacements for torch functions, by function."""
    return {
        **_RULES,
        **{func: _unchecked(func, checks) for func in _CHECKING},
        **{func: _valid(func) for func in _VALIDATING},
    }


# These check for errors: whether a window has zeros, whether a variance is negative.
_CHECKING = (torch.istft, Tensor.istft, F.gaussian_nll_loss)


def _unchecked(func: Callable[..., Any], checks: SkippedChecks) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with checks.left_out():
            return func(*args, **kwargs)

    return call


# torch.distributions validates parameters and samples with these, in the modules below.
_VALIDATING: tuple[Any, ...] = (lookup("torch._is_all_true", None), Tensor.all)
_VALIDATION_MODULES = {
    f"torch.distributions.{name}"
    for name in ("distribution", "constraints", "continuous_bernoulli", "geometric")
}


def _valid(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(2)  # past the mode that calls this
        if not (args or kwargs) and caller.f_globals.get("__name__") in _VALIDATION_MODULES:
            return True
        return func(x, *args, **kwargs)

    return call


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes <= 0:
        return F.one_hot(tensor, num_classes)
    places = torch.arange(num_classes, device=tensor.device)
    return (tensor.unsqueeze(-1) == places).to(torch.int64)


def _cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    if fweights is None and aweights is None:
        return torch.cov(input, correction=correction)  # the values that it reads are constants
    x = input.reshape(1, -1) if input.dim() < 2 else input
    if fweights is None or aweights is None:
        weights: Any = aweights if fweights is None else fweights
    else:
        weights = fweights * aweights
    total = weights.sum()
    mean = (x * weights).sum(1, keepdim=True) / total
    if aweights is None or correction == 0:
        count = total - correction
    else:
        count = total - correction * (weights * aweights).sum() / total
    apart = x - mean
    product = (apart * weights) @ apart.mH
    divided: Tensor = product / count.clamp(min=0)
    return divided.squeeze()


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Takes lengths that are not tensors, which torch would write into the memory of a tensor."""
    if isinstance(input_lengths, Tensor) and isinstance(target_lengths, Tensor):
        return torch.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )
    is_batch = log_probs.dim() == 3
    if not is_batch:
        log_probs = log_probs.unsqueeze(1)
    losses: Tensor = aten._ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0, losses)
    if reduction == 1:
        return (losses / torch.tensor(target_lengths).to(losses).clamp(min=1)).mean()
    if reduction == 2:
        return losses.sum()
    return losses if is_batch else losses.squeeze(0)


def _ctc_loss_by_name(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    return _ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, number, zero_infinity
    )


def _full(size: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if not isinstance(fill_value, Tensor):
        return torch.full(size, fill_value, dtype=dtype, **kwargs)
    if dtype is None:
        dtype = torch.full((), _of_its_kind(fill_value)).dtype
    return torch.empty(size, dtype=dtype, **kwargs).fill_(fill_value.detach())


def _of_its_kind(x: Tensor) -> complex:
    if x.is_complex():
        return 1j
    return 0.5 if x.is_floating_point() else False if x.dtype is torch.bool else 1


def _full_like(input: Tensor, fill_value: Any, **kwargs: Any) -> Tensor:
    if not isinstance(fill_value, Tensor):
        return torch.full_like(input, fill_value, **kwargs)
    return torch.empty_like(input, **kwargs).fill_(fill_value.detach())


def _new_full(x: Tensor, size: Any, fill_value: Any, **kwargs: Any) -> Tensor:
    if not isinstance(fill_value, Tensor):
        return x.new_full(size, fill_value, **kwargs)
    return x.new_empty(size, **kwargs).fill_(fill_value.detach())


def _format(x: Tensor, spec: str) -> str:
    """Formats a tensor without dimensions by its value, as torch does for plain tensors."""
    if spec and x.dim() == 0:
        return format(x.item(), spec)
    return Tensor.__format__(x, spec)  # type: ignore[no-any-return, no-untyped-call]


_RULES: dict[Any, Callable[..., Any]] = {
    Tensor.__format__: _format,
    F.one_hot: _one_hot,
    torch.cov: _cov,
    Tensor.cov: _cov,
    torch.ctc_loss: _ctc_loss,
    F.ctc_loss: _ctc_loss_by_name,
    torch.full: _full,
    torch.full_like: _full_like,
    Tensor.new_full: _new_full,
}


def _scaling(func: Callable[..., Any]) -> Callable[..., Any]:
    """Lets alpha or value be a tensor in functions that add a multiple of y, y*z or y/z to x."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = "alpha" if "alpha" in kwargs else "value"
        number = kwargs.get(named, args[3] if len(args) > 3 else None)
        if not isinstance(number, Tensor):
            return func(*args, **kwargs)
        kwargs.pop(named, None)
        if len(args) > 1:
            return func(args[0], args[1] * number.detach(), *args[2:3], **kwargs)
        name = "other" if "other" in kwargs else "tensor1"
        return func(*args, **{**kwargs, name: kwargs[name] * number.detach()})

    return call


_RULES |= {
    func: _scaling(func)
    for func in (
        *(torch.add, torch.sub, Tensor.add, Tensor.sub, Tensor.add_, Tensor.sub_),
        *(torch.addcmul, Tensor.addcmul, Tensor.addcmul_),
        *(torch.addcdiv, Tensor.addcdiv, Tensor.addcdiv_),
    )
}
