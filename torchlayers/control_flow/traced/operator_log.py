"""Logs the operators that a function calls, to compare one run with another."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operator_schema import arguments_written, is_random, returns_alias
from torchlayers.core.operators import aten
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    dispatch_modes,
)


def _is_literal(x: Tensor) -> bool:
    """Whether a constant may be one that a function has written out as numbers."""
    return not isinstance(x, FakeTensor) and x.numel() <= 1024


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators called inside, with their numbers, and tensors in order of appearance.

    Attributes:
        all: the recorded calls.
        draws: whether an operator draws random numbers.
        writes: whether an operator writes to a tensor created outside.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all: list[Any] = []
        self.draws = False
        self.writes = False
        self._seen: dict[int, tuple[int, Tensor]] = {}
        self._counted_tensors: dict[int | None, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # called when a layer first sees a tensor
            return func(*args, **kwargs)
        self.draws = self.draws or is_random(func)
        self.writes = self.writes or any(
            storage_of(x) not in self._counted_tensors
            for x in arguments_written(func, args, kwargs)
        )
        seen_args = pytree.map_tensors(self._counted, (args, kwargs))
        if func is aten.lift_fresh.default and _is_literal(args[0]):
            with dispatch_modes._disable_current_modes():  # fake tensors outside have no values
                seen_args = args[0].tolist()
        self.all.append((func, repr(seen_args)))
        results = func(*args, **kwargs)
        if not returns_alias(func):
            pytree.map_tensors(self._make, results)
        return results

    def _counted(self, x: Tensor) -> Any:
        number, _ = self._seen.setdefault(id(x), (len(self._seen), x))
        return number, x.shape, x.dtype

    def _make(self, x: Tensor) -> Tensor:
        self._counted_tensors[storage_of(x)] = x
        return x
