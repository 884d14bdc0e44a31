"""fori_loop: calls a function once for each integer in a range."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.checks import Carry
from torchlayers.control_flow.slices import Slices
from torchlayers.control_flow.traced import scan_capture
from torchlayers.control_flow.while_loop import Strategy, while_loop
from torchlayers.core.annotations import T
from torchlayers.core.errors import TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.fx.symbolic_index import SymbolicIndex, SymbolicIndexMode
from torchlayers.taps import loop_steps

_INT = int | torch.SymInt  # a size may be one


def fori_loop(
    lower: int | Tensor,
    upper: int | Tensor,
    body_fn: Callable[[Any, T], T],
    init: T,
    *,
    batched: Strategy = "hold",
) -> T:
    """``carry = init``, and for each i in range(lower, upper): ``carry = body_fn(i, carry)``.

    Args:
        lower: the first i: an int, or a tensor that holds one, which may be batched.
        upper: the end of the range, exclusive: an int or a tensor, as lower.
        body_fn: takes i and the carry; returns the next carry, with the same structure, shapes and
            dtypes. i is an int if both bounds are, else a tensor.
        init: the initial carry.
        batched: how to run samples with different trip counts, as for :func:`while_loop`.
    Returns:
        The final carry.
    Raises:
        TransformError: a bound is not one integer.
        StructureError: body_fn returns a carry with another structure, shape or dtype.
    Example:
        >>> torchlayers.fori_loop(1, 5, lambda i, product: product * i, torch.tensor(1))
        tensor(24)
        >>> def power(x, n):
        ...     return torchlayers.fori_loop(0, n, lambda i, y: x * y, torch.ones(()))
        >>> torchlayers.vmap(power, in_dims=(None, 0))(torch.tensor(2.0), torch.arange(4))
        tensor([1., 2., 4., 8.])

    Source: jax.lax.fori_loop.
    """
    check_function("fori_loop", "body_fn", body_fn)
    _check_bound("lower", lower)
    _check_bound("upper", upper)
    if isinstance(lower, _INT) and isinstance(upper, _INT):
        checks = Carry("fori_loop", init, "body_fn")
        if scan_capture.may_capture_scan(upper - lower):
            captured = scan_capture.capture_scan(
                checks,
                lambda carry, i: (_counted(body_fn, i, carry), None),
                init,
                Slices("fori_loop", torch.arange(lower, upper), None),
            )
            if captured is not None:
                return captured[0]
        carry = init
        loop = loop_steps.begin_loop("fori_loop", max(upper - lower, 0))
        with loop.running():
            for i in range(lower, upper):
                loop.begin(i - lower)
                carry = checks.checked(body_fn(i, carry))
        return carry
    device = (lower if isinstance(lower, Tensor) else upper).device  # type: ignore[union-attr]
    first, end = (torch.as_tensor(bound, device=device).reshape(()) for bound in (lower, upper))
    dtype = torch.promote_types(first.dtype, end.dtype)

    def trip(counted: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        i, carry = counted
        return i + 1, body_fn(i, carry)

    start = first.to(dtype), init
    _, carry = while_loop(lambda counted: counted[0] < end, trip, start, batched=batched)
    return carry


def _counted(body_fn: Callable[[Any, Any], Any], i: Tensor, carry: Any) -> Any:
    with SymbolicIndexMode():
        return body_fn(SymbolicIndex(i), carry)


def _check_bound(name: str, bound: Any) -> None:
    if isinstance(bound, _INT):
        return
    if not isinstance(bound, Tensor):
        got = type(bound).__name__
    elif bound.is_floating_point() or bound.is_complex() or bound.dtype == torch.bool:
        got = f"a tensor of dtype {bound.dtype}"
    elif bound.numel() != 1:
        got = f"a tensor of shape {tuple(bound.shape)}"
    else:
        return
    raise TransformError(
        f"torchlayers: fori_loop: {name} must be an int or a tensor that holds one integer, got "
        f"{got}."
    )
