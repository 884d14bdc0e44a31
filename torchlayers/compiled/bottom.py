"""What is done to operators that reach the bottom of the stack, before they are written down."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchlayers import tree
from torchlayers.compiled.opaque import random_from
from torchlayers.compiled.refused import DATA_DEPENDENT, explain

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_RANDOM_BETWEEN = getattr(aten.random_, "from")


class BelowTheLayers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tensors that the function captured become inputs; operators are called by other names."""

    supports_higher_order_operators = True

    def __init__(self, func: Callable[..., Any], capture: Callable[[Tensor], FakeTensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._func = func
        self._capture = capture

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(
            args[0], FakeTensor
        ):  # asked for more often than all else
            return args[0].fake_device
        kwargs = kwargs or {}
        if func is not aten.lift_fresh.default:  # torch.tensor's: nobody else has it
            args, kwargs = tree.map_tensors(self._known, (args, kwargs))
        try:
            return OTHERWISE.get(func, func)(*args, **kwargs)
        except DATA_DEPENDENT as error:
            explain(error, self._func)
            raise

    def _known(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._capture(tensor)


def _batch_norm(*args: Any, **kwargs: Any) -> Any:
    """By the name that says that it writes its statistics."""
    if args[5] and args[3] is not None:
        return aten._native_batch_norm_legit.default(*args, **kwargs)
    return aten.native_batch_norm.default(*args, **kwargs)


def _interpolate(x: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """torch finds the shape of lerp_ by trying overloads, and prints what a wrong one was given.

    That is an internal assert where a jvp is under way: below autograd no tensor can be printed.
    """
    return x.copy_(aten.lerp.Tensor(x, end, weight))


def _draw_between(
    x: Tensor, low: int, high: int | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """The same numbers; random_.from can't be written in Python, where from is a keyword."""
    if generator is not None:
        return _RANDOM_BETWEEN(x, low, high, generator=generator)  # type: ignore[no-any-return]
    if high is None:
        return x.copy_(random_from(x, low))
    return x.copy_(aten.randint_like.low_dtype(x, low, high))


OTHERWISE: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.lerp_.Tensor: _interpolate,
    _RANDOM_BETWEEN: _draw_between,
}
