"""Replacements for ATen operators that can't be captured as they are."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.errors import DataDependentError, TransformError, location
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import FakeTensor, TorchDispatchMode
from torchlayers.fx.custom_ops import ctc_loss, least_squares, lstm_layer, random_from

_RANDOM_BETWEEN = getattr(aten.random_, "from")


def _batch_norm(*args: Any, **kwargs: Any) -> Any:
    """Uses the overload whose schema says that it writes the running statistics, where it does."""
    if args[5] and args[3] is not None:
        return aten._native_batch_norm_legit.default(*args, **kwargs)
    return aten.native_batch_norm.default(*args, **kwargs)


def _interpolate(x: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """lerp_, out of place and copied: torch infers its shape by trying overloads.

    It prints the arguments of a wrong one, which is an internal assertion failure during a jvp:
    below autograd, tensors can't be printed.
    """
    return x.copy_(aten.lerp.Tensor(x, end, weight))


def _draw_between(
    x: Tensor, low: int, high: int | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draws the same numbers by other operators: ``from`` is a keyword in generated Python code."""
    if generator is not None:
        return _RANDOM_BETWEEN(x, low, high, generator=generator)  # type: ignore[no-any-return]
    if high is None:
        return x.copy_(random_from(x, low))
    return x.copy_(aten.randint_like.low_dtype(x, low, high))


def _has_symbols(*tensors: Tensor) -> bool:
    return any(x._has_symbolic_sizes_strides for x in tensors)


def _add_product(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    """addcmul with explicit broadcasting, which torch can't infer here for symbolic sizes."""
    if _has_symbols(x, a, b):
        shape = torch.broadcast_shapes(x.shape, a.shape, b.shape)  # type: ignore[no-untyped-call]
        x, a, b = (factor.expand(shape) for factor in (x, a, b))
    return aten.addcmul.default(x, a, b, value=value)  # type: ignore[no-any-return]


def _pad(x: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """constant_pad_nd by concatenation, as torch specializes symbolic sizes to numbers here."""
    if not _has_symbols(x):
        return aten.constant_pad_nd.default(x, pad, value)  # type: ignore[no-any-return]
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        if before < 0 or after < 0:
            x = aten.slice.Tensor(x, dim, max(-before, 0), x.shape[dim] + min(after, 0))
        if before > 0 or after > 0:
            sides = [
                x.new_full([*x.shape[:dim], max(count, 0), *x.shape[dim + 1 :]], value)
                for count in (before, after)
            ]
            x = aten.cat.default([sides[0], x, sides[1]], dim)
    return x


def _select(x: Tensor, dim: int, index: Any) -> Tensor:
    """select as a slice, as torch specializes a symbolic index to a number here."""
    if not isinstance(index, torch.SymInt) or index.node.maybe_as_int() is not None:
        return aten.select.int(x, dim, index)  # type: ignore[no-any-return]
    if index < 0:
        index = index + x.shape[dim]
    row = aten.slice.Tensor(x, dim, index, index + 1)
    return aten.squeeze.dim(row, dim)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _without_cache(mode: Any) -> Iterator[None]:
    """Inside, a mode of fake tensors computes each result anew."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def _zeros_as(x: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros for a tangent laid out like its primal.

    torch specializes the size of the primal's memory to a number here.
    """
    if not _has_symbols(x, other):
        # On a hit, the fake tensor cache makes tensors whose memory ends with their elements. But
        # the tangent of a slice needs as much memory as the whole tensor.
        with _without_cache(x.fake_mode) if isinstance(x, FakeTensor) else contextlib.nullcontext():
            return aten._new_zeros_with_same_feature_meta.default(  # type: ignore[no-any-return]
                x, other, self_num_batch_dims=self_num_batch_dims
            )
    batch = x.shape[:self_num_batch_dims]
    if other.is_contiguous():
        return x.new_zeros([*batch, *other.shape])
    bytes_held: Any = other.untyped_storage().nbytes()
    if isinstance(bytes_held, torch.SymInt) and bytes_held.node.maybe_as_int() is not None:
        bytes_held = bytes_held.node.maybe_as_int()
    size = bytes_held // other.element_size()
    rows = x.new_zeros([*batch, size])
    strides = [*rows.stride()[:-1], *other.stride()]
    return rows.as_strided([*batch, *other.shape], strides, other.storage_offset())


def _set(x: Tensor, y: Tensor) -> Tensor:
    raise TransformError(
        "torchlayers: compile: set_ gives a tensor the storage of another, which can't be captured."
        f"{location()} Write x.data = y, which can be, or use y itself."
    )


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    if isinstance(target_lengths, Tensor):
        longest = targets.shape[-1]
    else:
        longest = max(target_lengths, default=0)
    lengths = map(torch.as_tensor, (input_lengths, target_lengths))
    return ctc_loss(log_probs, targets, *lengths, longest, blank, zero_infinity)


def _least_squares(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> Any:
    if driver in ("gelsd", "gelss") and a.shape[-2] > a.shape[-1]:
        raise DataDependentError(
            f"torchlayers: compile: linalg.lstsq with the driver {driver} and more rows than "
            f"columns returns residuals only if the data has full rank.{location()} Use the driver "
            "'gelsy' or 'gels', or leave that part outside."
        )
    return least_squares(a, b, rcond, driver)


def _lstm_layer(*args: Any) -> Any:
    """Returns the backward's workspace as well: captured graphs run with autograd off."""
    if not torch.is_grad_enabled():
        return aten.mkldnn_rnn_layer.default(*args)
    return lstm_layer(*args[:8], *args[9:])


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    aten.addcmul.default: _add_product,
    aten.constant_pad_nd.default: _pad,
    aten.select.int: _select,
    aten.native_batch_norm.default: _batch_norm,
    aten.lerp_.Tensor: _interpolate,
    aten._new_zeros_with_same_feature_meta.default: _zeros_as,
    aten.set_.source_Tensor: _set,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.linalg_lstsq.default: _least_squares,
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    _RANDOM_BETWEEN: _draw_between,
}


class ReplacementMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, replaces operators as a capture does."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch.DisableTorchFunction():  # for modes of functions, the operator has been called
            return REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))
