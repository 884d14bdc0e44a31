"""Finds the operator that makes a nan: torchlayers.debug.nans."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.device import has_data
from torchlayers.core.entered_at import is_entering
from torchlayers.core.errors import NanError, is_user_file, location, message_of
from torchlayers.core.torch_private import FakeTensor, TorchDispatchMode

# Their results may be any memory.
_UNINITIALIZED = ("empty", "resize_", "set_")


@contextlib.contextmanager
def nans(*, infinities: bool = False) -> Iterator[None]:
    """A context manager inside which the first nan that is made of numbers is an error.

    The values of every operator are looked at below all transforms, those of all samples at once,
    and so are the gradients of every operator in a backward pass, as by
    ``torch.autograd.detect_anomaly``. The error names the operator and the line of the program: of
    a gradient, the line whose derivative it is. Where an argument is nan already, the operator only
    passes it on. A nan that is dropped later, as by torch.where, is an error too: its gradient
    would not be dropped.

    It waits for each result, and compiled functions run operator by operator. That is slow: find
    the line, then leave it out.

    Args:
        infinities: whether an infinite number that is made of finite ones is an error as well.
    Raises:
        NanError: an operator or a derivative made a nan, or an infinite number.
    Example:
        >>> from torchlayers import debug
        >>> def entropy(p):
        ...     return -(p * p.log()).sum()
        >>> with debug.nans():  # doctest: +ELLIPSIS
        ...     _ = torchlayers.vmap(entropy)(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        Traceback (most recent call last):
        torchlayers.errors.NanError: torchlayers: debug.nans: aten::mul.Tensor made 1 nan of
        numbers, in a result of shape (2, 2), at (1, 1), where its arguments are 0.0, -inf. In ...

    Source: jax.debug_nans, jax.debug_infs, torch.autograd.detect_anomaly.
    """
    with _anomaly_mode(), _NanMode(infinities):
        try:
            yield
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            raise NanError(f"torchlayers: debug.nans: {message_of(error)}") from error


@contextlib.contextmanager
def _anomaly_mode() -> Iterator[None]:
    is_on, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=True)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(is_on, checks)


class _NanMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, infinities: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._infinities = infinities

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = pytree.leaves((args, kwargs))
        had_nan, had_infinite = _has(torch.isnan, inputs), self._has_infinite(inputs)
        results = func(*args, **kwargs)
        if not had_nan and not func.__name__.startswith(_UNINITIALIZED):
            for result in pytree.leaves(results):
                # Anomaly mode looks for nan in what a pass computes, and knows the lines.
                if _has(torch.isnan, [result]) and not _is_in_backward():
                    raise NanError(_message(func, result, inputs, "nan", torch.isnan))
                if not had_infinite and self._has_infinite([result]):
                    raise NanError(_message(func, result, inputs, "inf", torch.isinf))
        return results

    def _has_infinite(self, values: Sequence[Any]) -> bool:
        return self._infinities and _has(torch.isinf, values)


def _has(test: Callable[[Tensor], Tensor], values: Sequence[Any]) -> bool:
    """Whether a number among the values passes a test."""
    return any(_has_one(test, value) for value in values)


def _has_one(test: Callable[[Tensor], Tensor], value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value) and math.isnan(value) == (test is torch.isnan)
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or not has_data(value):
        return False
    if value.layout is not torch.strided or not (value.is_floating_point() or value.is_complex()):
        return False
    return bool(test(value).any())


def _message(
    op: Any,
    result: Tensor,
    inputs: Sequence[Any],
    kind: str,
    test: Callable[[Tensor], Tensor],
) -> str:
    where = test(result)
    count, place = int(where.sum()), tuple(where.nonzero()[0].tolist())
    text = (
        f"torchlayers: debug.nans: {op.name()} made {count} {kind} of numbers, in a result of "
        f"shape {tuple(result.shape)}"
    )
    if place:
        text += f", {'at' if count == 1 else 'the first at'} {place}"
    if torch.Tag.pointwise in op.tags:
        numbers = [_number_at(value, place, result) for value in inputs]
        text += f", where its arguments are {', '.join(map(str, numbers))}"
    elif infinite := sum(_count_infinite(value) for value in inputs):
        text += f"; its arguments have {infinite} infinite values"
    elif _is_in_backward():
        text += ", in a backward pass"
    return f"{text}.{location()}"


def _number_at(value: Any, place: tuple[int, ...], result: Tensor) -> Any:
    """What an elementwise operator reads for a place of its result."""
    return value.expand(result.shape)[place].item() if isinstance(value, Tensor) else value


def _count_infinite(value: Any) -> int:
    is_strided = isinstance(value, Tensor) and value.layout is torch.strided
    return int(value.isinf().sum()) if is_strided else 0


def _is_in_backward() -> bool:
    """Whether a backward pass has called the operator, and no line of the program in it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if is_entering(frame) or frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False
