"""Custom operators that replace ATen operators in captured graphs, and are opaque to Inductor."""

import functools
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.device import is_on_host
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import AUTOGRAD, dispatch_keys, dispatch_modes


@torch.library.custom_op(
    "torchlayers::bernoulli", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def bernoulli(like: Tensor, p: float) -> Tensor:
    """aten.bernoulli.p, which Inductor lowers to an in-place draw, and may read before the draw."""
    return torch.bernoulli(like, p)


@bernoulli.register_fake
def _(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like)


@torch.library.custom_op(
    "torchlayers::random_from", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def random_from(like: Tensor, low: int) -> Tensor:
    """x.random_(low, None), for which no other operator exists."""
    return torch.empty_like(like).random_(low, None)


@random_from.register_fake
def _(like: Tensor, low: int) -> Tensor:
    return torch.empty_like(like)


@torch.library.custom_op("torchlayers::ctc_loss", mutates_args=())
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """aten._ctc_loss, whose second result has a data-dependent size: the longest target's length.

    Here it is padded to the largest possible length, which the backward accepts as well.
    """
    losses, log_alpha = aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    missing = 2 * longest + 1 - log_alpha.shape[-1]
    return losses, torch.nn.functional.pad(log_alpha, (0, missing)).contiguous()


@ctc_loss.register_fake
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    time, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, time, 2 * longest + 1)


@torch.library.custom_op("torchlayers::least_squares", mutates_args=())
def least_squares(
    a: Tensor, b: Tensor, rcond: float | None, driver: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten.linalg_lstsq for drivers whose residuals exist always or never, whatever the rank."""
    solution, *rest = aten.linalg_lstsq(a, b, rcond, driver=driver)
    return solution.contiguous(), *(result.contiguous() for result in rest)


@least_squares.register_fake
def _(
    a: Tensor, b: Tensor, rcond: float | None, driver: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    wide = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], wide.shape[:-2])  # type: ignore[no-untyped-call]
    sides = wide.shape[-1]
    has_ranks = (driver or ("gelsy" if is_on_host(a) else "gels")) != "gels"
    has_singular = driver in ("gelsd", "gelss")
    real = a.real.dtype
    return (
        a.new_empty(*batch, columns, *(() if is_vector else (sides,))),
        a.new_empty((*batch, sides) if rows > columns and not has_ranks else (0,), dtype=real),
        a.new_empty(a.shape[:-2] if has_ranks else (0,), dtype=torch.int64),
        a.new_empty((*a.shape[:-2], min(rows, columns)) if has_singular else (0,), dtype=real),
    )


@torch.library.custom_op("torchlayers::lstm_layer", mutates_args=())
def lstm_layer(
    x: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    input_bias: Tensor,
    hidden_bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    is_reversed: bool,
    mode: int,
    size: int,
    layers: int,
    has_biases: bool,
    is_bidirectional: bool,
    batch_first: bool,
    is_training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten.mkldnn_rnn_layer with its backward's workspace, which it returns only in grad mode."""
    tensors = (x, input_weight, hidden_weight, input_bias, hidden_bias, hidden, cell)
    with torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(  # type: ignore[no-any-return]
            *(tensor.contiguous() for tensor in tensors),
            is_reversed,
            [],
            mode,
            size,
            layers,
            has_biases,
            is_bidirectional,
            batch_first,
            is_training,
        )


@lstm_layer.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors, rest = args[:7], args[7:]
    x, hidden, cell = args[0], args[5], args[6]
    shapes = tuple(tuple(map(int, tensor.shape)) for tensor in tensors)
    reserved = _reserved_by_lstm(shapes, x.dtype, x.device, rest)
    return (
        x.new_empty(*x.shape[:-1], hidden.shape[-1]),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
        x.new_empty(reserved, dtype=torch.uint8),
    )


@functools.lru_cache
def _reserved_by_lstm(
    shapes: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
    rest: tuple[Any, ...],
) -> int:
    """The workspace's size in bytes, which the library reveals only by running."""
    with dispatch_modes._disable_current_modes(), dispatch_keys(without=AUTOGRAD):
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)
        reserved: Tensor = lstm_layer(*zeros, *rest)[3]
    return reserved.numel()
